// SPDX-License-Identifier: MIT
// Copies of tiles of rows into swizzled shared memory with cp.async.
#pragma once

#include "mma.cuh"

namespace dflash::cuda::device {

// How the threads of a CTA share the copy of a tile: each has one 16-byte chunk of every kStep-th row.
template <int kD, int kRows, int kThreads>
struct RowCopy {
    static constexpr int kChunks = kD / 8;
    static constexpr int kStep = kThreads / kChunks;
    static_assert(kStep % 8 == 0 && kRows % kStep == 0);  // so that a thread's rows are swizzled alike
    int row = threadIdx.x / kChunks;
    int column = threadIdx.x % kChunks * 8;

    // Every row exists: row r is at first + (r / kStep) * step elements from the thread's first one.
    __device__ __forceinline__ void all(SharedTile<kD> tile, int head_dim, const Bf16Bits* first, long long step) const {
        const std::uint32_t destination = tile.chunk(row, column / 8);
        const bool valid = column < head_dim;
        const Bf16Bits* from = valid ? first + column : first;
#pragma unroll
        for (int i = 0; i < kRows / kStep; ++i) {
            copy_async_16(destination + i * kStep * kD * 2, from, valid);
            from += step;
        }
    }
    // `source(row)` is a row's address or null (zeros).
    template <typename Source>
    __device__ __forceinline__ void some(SharedTile<kD> tile, int head_dim, Source source) const {
#pragma unroll 1
        for (int r = row; r < kRows; r += kStep) {
            const Bf16Bits* from = source(r);
            const bool valid = from != nullptr && column < head_dim;
            copy_async_16(tile.chunk(r, column / 8), valid ? from + column : nullptr, valid);
        }
    }
};

}  // namespace dflash::cuda::device
