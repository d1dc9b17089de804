#!/bin/bash
# SPDX-License-Identifier: MIT
# Compiles the CUDA code without needing a GPU and reads the assembler's report: a kernel whose matrix instructions ptxas serialises (its
# messages C7510 to C7520, but for the harmless C7519) fails, and so does a portable attention kernel that spills registers. (The Hopper kernels
# spill a little in the warp that feeds the others, which has 40 registers, outside their matrix loops.) Two compilations at a time.
#   tools/compile_cuda.sh [OUTPUT_DIR]
set -euo pipefail
cd "$(dirname "$0")/.."
export out=${1:-$(mktemp -d)}
mkdir -p "$out"

compile() {  # compile FILE ARCH
    local object="$out/$(basename "$1" .cu).$2.o" report started=$SECONDS
    report=$(nvcc -std=c++20 -O3 --Werror=all-warnings -DFMT_USE_CONSTEXPR=1 -Isrc -gencode "arch=compute_$2,code=sm_$2" -Xptxas -v -c "$1" -o "$object" 2>&1) || {
        echo "$report"
        exit 1
    }
    if grep -E '\(C75(1[0-8]|20)\)' <<<"$report"; then
        echo "$1: ptxas serialises matrix instructions for sm_$2" >&2
        exit 1
    fi
    case $1 in
        *hopper*) ;;
        *attention*)
            if grep -q '[1-9][0-9]* bytes spill' <<<"$report"; then
                grep -B 1 '[1-9][0-9]* bytes spill' <<<"$report"
                echo "$1: a kernel spills registers on sm_$2" >&2
                exit 1
            fi
            ;;
    esac
    echo "sm_$2 $1 ($((SECONDS - started)) s)"
}
export -f compile

# All files for Hopper, all but the Hopper kernels for the oldest architecture, the attention kernels for the newest consumer one too.
{
    for file in src/kernels/cuda/*.cu; do
        echo "$file 90a"
        case $file in *hopper*) ;; *) echo "$file 80" ;; esac
    done
    for name in anchor_attention_portable anchor_attention_row_sums causal_attention; do echo "src/kernels/cuda/$name.cu 120"; done
} | xargs -P 2 -L 1 bash -c 'compile "$1" "$2"' _
