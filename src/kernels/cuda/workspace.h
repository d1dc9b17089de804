// SPDX-License-Identifier: MIT
// What the CUDA ops take of the context's workspace: the constants that launches and plan share. Plain C++, compiled in every build.
#pragma once

#include <cstddef>

namespace dflash::cuda {

constexpr std::size_t kMatmulWorkspaceBytes = std::size_t{32} << 20;  // what cuBLASLt's algorithms for Hopper ask for
constexpr int kRmsNormPartials = 256;                                 // most blocks of a backward, each with a row of partial sums (C)
constexpr int kHeadNormPartials = 1024;                               // the same, with rows (D)
constexpr int kSquarePartials = 2048;                                 // of the gradients' sum of squares, f64

// The delta rule in chunks: what a segment of chunks leaves for the chain along them, a head (T and P in bf16, four f32 factors a row).
constexpr int kDeltaChunk = 64;
constexpr int kDeltaSegmentChunks = 32;
constexpr std::size_t kDeltaPreparedBytes = 2 * 2 * kDeltaChunk * kDeltaChunk + 4 * 4 * kDeltaChunk;

}  // namespace dflash::cuda
