#!/bin/bash
# SPDX-License-Identifier: MIT
# Compiles the CUDA code without needing a GPU, for every architecture that is supported, and reads the assembler's report: a kernel whose
# matrix instructions ptxas serialises (its messages C7510 to C7520, but for the harmless C7519) fails.
#   tools/compile_cuda.sh [OUTPUT_DIR]
set -eu
cd "$(dirname "$0")/.."
out=${1:-$(mktemp -d)}
mkdir -p "$out"
portable_archs=(80 89 100 120)

compile() {  # compile FILE ARCH
    local object="$out/$(basename "$1" .cu).$2.o" report
    report=$(nvcc -std=c++20 -O3 --Werror=all-warnings -Isrc -gencode "arch=compute_$2,code=sm_$2" -Xptxas -v -c "$1" -o "$object" 2>&1) || {
        echo "$report"
        exit 1
    }
    if grep -E '\(C75(1[0-8]|20)\)' <<<"$report"; then
        echo "$1: ptxas serialises matrix instructions for sm_$2" >&2
        exit 1
    fi
    echo "sm_$2 $1"
}

for file in src/kernels/cuda/*.cu; do
    compile "$file" 90a
done
for arch in "${portable_archs[@]}"; do
    compile src/kernels/cuda/anchor_attention_portable.cu "$arch"
    compile src/kernels/cuda/anchor_attention_row_sums.cu "$arch"
done
