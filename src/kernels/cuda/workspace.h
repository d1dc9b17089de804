// SPDX-License-Identifier: MIT
// What the CUDA ops take of the context's workspace: the constants that launches and plan share. Plain C++, compiled in every build.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace dflash::cuda {

constexpr std::size_t kMatmulWorkspaceBytes = std::size_t{32} << 20;  // what cuBLASLt's algorithms for Hopper ask for
constexpr int kRmsNormPartials = 256;                                 // most blocks of a backward, each with a row of partial sums (C)
constexpr int kHeadNormPartials = 1024;                               // the same, with rows (D)
constexpr int kSquarePartials = 2048;                                 // of the gradients' sum of squares, f64

// The delta rule in chunks: what a segment of chunks leaves for the chain along them, a head (T and P in bf16, four f32 factors a row).
constexpr int kDeltaChunk = 64;
constexpr int kDeltaSegmentChunks = 32;
constexpr std::size_t kDeltaPreparedBytes = 2 * 2 * kDeltaChunk * kDeltaChunk + 4 * 4 * kDeltaChunk;

// Causal attention of a few rows over a longer cache: keys of a split, from the cache's size alone, and the splits of a call.
constexpr std::int64_t kAttentionSplitRows = 32;  // with more, blocks of rows keep the device busy
constexpr std::int64_t kAttentionSplitKeys = 256;
constexpr std::int64_t kAttentionMostSplits = 32;
constexpr std::int64_t attention_split_keys(std::int64_t key_rows) {
    constexpr std::int64_t kMost = kAttentionSplitKeys * kAttentionMostSplits;
    return std::max<std::int64_t>((key_rows + kMost - 1) / kMost, 1) * kAttentionSplitKeys;
}
constexpr std::int64_t attention_splits(std::int64_t rows, std::int64_t key_rows) {
    if (rows > kAttentionSplitRows || key_rows <= rows) return 1;
    return (key_rows + attention_split_keys(key_rows) - 1) / attention_split_keys(key_rows);
}

}  // namespace dflash::cuda
