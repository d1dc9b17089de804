#!/bin/bash
# SPDX-License-Identifier: MIT
# Compiles the CUDA code without needing a GPU and reads the assembler's report: a kernel whose matrix instructions ptxas serialises (its
# messages C7510 to C7520, but for the harmless C7519) fails, and so does an attention kernel that spills registers. Two
# compilations at a time.
#   tools/compile_cuda.sh [OUTPUT_DIR]
set -euo pipefail
cd "$(dirname "$0")/.."
export out=${1:-$(mktemp -d)}
mkdir -p "$out"

# What an attention kernel may spill, bytes stored by a thread: of Hopper's dQ and dK, dV the producer warp, which runs on 24 or 40 registers so that
# the consumers, who hold every matrix instruction, have up to 240.
allowed_spill() {  # allowed_spill ARCH KERNEL
    case "$1 $2" in
        "90a "*hopper::*query_kernel*) echo 8 ;;
        "90a "*hopper::*key_kernel*) echo 192 ;;
        *) echo 0 ;;
    esac
}
export -f allowed_spill

check_spills() {  # check_spills FILE ARCH, the report on stdin
    local bytes kernel bad=0
    while read -r bytes kernel; do
        if ((bytes > $(allowed_spill "$2" "$kernel"))); then
            echo "$1: for sm_$2 $kernel spills $bytes bytes" >&2
            bad=1
        fi
    done < <(c++filt | awk '/Compiling entry function/ { split($0, part, "\047"); kernel = part[2] }
                            / bytes spill stores/ { print $5, kernel }')
    return $bad
}
export -f check_spills

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
    case $1 in *attention*) check_spills "$1" "$2" <<<"$report" || exit 1 ;; esac
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
