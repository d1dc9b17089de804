#!/bin/bash
# SPDX-License-Identifier: MIT
# Tests, checks and times the fused attention kernels on the GPU of this machine.
#   tools/gpu_attention.sh DIR [quick]
# DIR holds cuda_anchor_attention_test and dflash, built beforehand (cmake --preset cuda) or copied from another machine.
# `quick` leaves the compute-sanitizer out. Every step has a time limit, so that a hanging kernel ends as a failure.
set -u
dir=$1
test_program=$dir/cuda_anchor_attention_test
status=0

step() {  # step NAME SECONDS COMMAND...
    local name=$1 seconds=$2
    shift 2
    local log
    log=$(mktemp)
    if timeout -k 5 "$seconds" "$@" >"$log" 2>&1; then
        echo "ok      $name"
    else
        echo "FAILED  $name (exit code $?)"
        tail -n 40 "$log"
        status=1
    fi
    rm -f "$log"
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
step "tests, portable" 120 "$test_program" --gtest_filter='*portable*'
step "tests, Hopper" 120 "$test_program" --gtest_filter='*hopper:*Large*'
if [ "${2:-}" != quick ]; then
    # The smallest shapes that run every instance of every kernel: racecheck looks at each access to shared memory, one after the other.
    small='Sanitizers/*/small*'
    for tool in memcheck racecheck synccheck initcheck; do
        step "compute-sanitizer $tool" 200 compute-sanitizer --tool "$tool" --error-exitcode 1 "$test_program" --gtest_filter="$small"
    done
fi
timeout -k 5 100 "$dir/dflash" bench attention --table --every-kernel || status=1
exit $status
