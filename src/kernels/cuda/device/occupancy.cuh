// SPDX-License-Identifier: MIT
// How many blocks share a multiprocessor, for launch bounds: a kernel that could not share one anyway need not do without registers.
#pragma once

#include <cstddef>

namespace dflash::cuda::device {

// Bytes of shared memory of a multiprocessor of the architecture that is compiled for.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000 || __CUDA_ARCH__ == 1030
constexpr std::size_t kMultiprocessorShared = 228 * 1024;
#elif __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 870
constexpr std::size_t kMultiprocessorShared = 164 * 1024;
#else
constexpr std::size_t kMultiprocessorShared = 100 * 1024;
#endif

// 1 or 2, for a block that takes `bytes`, and what the system adds.
constexpr int shared_by_two(std::size_t bytes) { return 2 * (bytes + 1024) <= kMultiprocessorShared ? 2 : 1; }

}  // namespace dflash::cuda::device
