#!/bin/bash
# SPDX-License-Identifier: MIT
# Everything that needs a GPU, on this machine: builds, runs the GPU cases of all tests, compute-sanitizer over the small ones, and the benches,
# and prints a line a job. The logs stay in build/gpu-logs. Every job has a time limit, so that a hanging kernel ends as a failure.
#   tools/gpu_check.sh [tests] [sanitizers] [benches]      all three without a word
set -uo pipefail
cd "$(dirname "$0")/.."
parts=${*:-tests sanitizers benches}
bin=build/cuda/bin
export logs=build/gpu-logs
rm -rf "$logs"
mkdir -p "$logs"

job() {  # job SECONDS NAME COMMAND...: ok or FAILED, the time it took, and the end of a failure's log
    local seconds=$1 name=$2 started=$SECONDS log
    shift 2
    log=$logs/${name//[^a-zA-Z0-9]/_}.log
    if timeout -k 5 "$seconds" "$@" >"$log" 2>&1; then
        printf 'ok      %-60s %4d s   %s\n' "$name" $((SECONDS - started)) "$(grep -E '^\[  (PASSED|SKIPPED)' "$log" | tr -s ' \n' ' ')"
    else
        printf 'FAILED  %-60s %4d s\n' "$name" $((SECONDS - started))
        grep -E 'FAILED|Failure|ERROR|error' "$log" | head -n 12
        tail -n 5 "$log"
        return 1
    fi
}
export -f job

jobs_of() {  # lines "SECONDS NAME COMMAND..." on stdin, run PARALLEL at a time
    xargs -d '\n' -P "$1" -I LINE bash -c 'job LINE'
}

cuda_programs() {  # test programs that have GPU cases
    for program in "$bin"/*_test; do
        "$program" --gtest_list_tests --gtest_filter='*cuda*:*Cuda*' 2>/dev/null | grep -q . && basename "$program"
    done
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
status=0
started=$SECONDS
cmake --preset cuda -DDFLASH_BUILD_TESTS=ON -DDFLASH_BUILD_BENCH=ON -DDFLASH_ENABLE_ASSERTS=ON >"$logs/configure.log" && cmake --build build/cuda >"$logs/build.log" 2>&1 || {
    tail -n 20 "$logs/build.log"
    exit 1
}
echo "built in $((SECONDS - started)) s"

if [[ $parts == *tests* ]]; then
    cuda_programs | sed "s|.*|300 'tests &' $bin/& --gtest_brief=1 '--gtest_filter=*cuda*:*Cuda*'|" | OMP_NUM_THREADS=2 jobs_of 6 || status=1
fi

# The sanitizers slow a kernel down a hundredfold: cases of full size and loops over many steps are left to the tests.
if [[ $parts == *sanitizers* ]]; then
    for tool in memcheck racecheck synccheck initcheck; do
        for program in $(cuda_programs | grep -E '^(kernels_|cuda_)'); do
            small="*cuda*:*Cuda*:-*Large*:*Long*:*Limit*:*Deterministic*:*SameBits*"
            [[ $program == cuda_anchor_attention_test ]] && small='*small*'
            echo "200 '$tool $program' compute-sanitizer --tool $tool --error-exitcode 1 $bin/$program --gtest_brief=1 '--gtest_filter=$small'"
        done
    done | OMP_NUM_THREADS=2 jobs_of 6 || status=1
fi

# One at a time: they are timed.
if [[ $parts == *benches* ]]; then
    for bench in "loss" "step --shape qwen3.6-27b" "step --shape qwen3.6-27b --max-anchors 256" "step --shape qwen3-8b" "attention --table --every-kernel"; do
        echo
        echo "dflash bench $bench"
        timeout -k 5 120 "$bin/dflash" bench $bench 2>&1 | tee "$logs/bench_${bench//[^a-z0-9]/_}.log" || status=1
    done
    echo
    timeout -k 5 60 "$bin/target_ops_bench" 2>&1 | tee "$logs/target_ops.log" || status=1
fi
exit $status
