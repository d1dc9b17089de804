// SPDX-License-Identifier: MIT
// Splits work among OpenMP threads: thread t of T gets the t-th of T nearly equal contiguous ranges, so results that depend on the
// partition (sums) are equal for one thread count. The body must not throw.
#pragma once

#include <omp.h>

#include <cstdint>

#include "kernels/context.h"

namespace dflash::cpu {

// Work below this many touched elements runs on the calling thread: waking the others costs more.
constexpr std::int64_t kSerialElements = 8192;

// body(begin, end) over [0, count); `elements_each` is the size of one item in elements.
template <typename Body>
void parallel_ranges(std::int64_t count, std::int64_t elements_each, const Body& body) {
    if (count <= 0) return;
    if (count == 1 || count * elements_each <= kSerialElements || cpu_threads() == 1) {
        body(std::int64_t{0}, count);
        return;
    }
#pragma omp parallel
    {
        const std::int64_t threads = omp_get_num_threads();
        const std::int64_t thread = omp_get_thread_num();
        const std::int64_t begin = count * thread / threads;
        const std::int64_t end = count * (thread + 1) / threads;
        if (begin < end) body(begin, end);
    }
}

}  // namespace dflash::cpu
