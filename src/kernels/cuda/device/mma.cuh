// SPDX-License-Identifier: MIT
// mma.sync m16n8k16 in bf16 with fp32 sums, ldmatrix, and the swizzled shared tile that both read (sm_80 and later).
//
// Fragments: an accumulator tile is float[4]: columns 2q, 2q+1 of row lane/4, then of row lane/4 + 8 (q = lane % 4). wgmma's
// accumulators have the same layout for each 8 columns, so softmax, masks and stores serve both matrix back ends.
#pragma once

#include <cstdint>

#include "bf16_bits.h"
#include "copy.cuh"

namespace dflash::cuda::device {

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
    std::uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

__device__ __forceinline__ void mma(float (&acc)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void load_matrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_matrix_x4_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void store_matrix_x4(std::uint32_t address, std::uint32_t r0, std::uint32_t r1, std::uint32_t r2,
                                                std::uint32_t r3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3)
                 : "memory");
}

// An 8x8 matrix of bf16, a row's pair a thread, becomes its transpose.
__device__ __forceinline__ std::uint32_t transpose_8x8(std::uint32_t pair) {
    std::uint32_t transposed;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
    return transposed;
}

// The value, made anew as far as the compiler knows. In a loop without registers to spare it would compute all that derives from the value (a lane's
// addresses) ahead of the loop, and then spill it.
__device__ __forceinline__ int made_again(int value) {
    asm volatile("" : "+r"(value));
    return value;
}

// Rows of kD elements in shared memory; the 16-byte chunks of a row are permuted so that eight rows of one column do not share banks.
template <int kD>
struct SharedTile {
    static constexpr int kChunks = kD / 8;
    std::uint32_t base;
    __device__ __forceinline__ std::uint32_t chunk(int row, int c) const { return base + (row * kChunks + (c ^ (row & 7))) * 16; }
};

// A fragment: rows [row, row + 16), columns [16 k, 16 k + 16).
template <int kD>
__device__ __forceinline__ void load_a(std::uint32_t (&a)[4], SharedTile<kD> tile, int row, int k, int lane) {
    load_matrix_x4(a, tile.chunk(row + (lane & 15), 2 * k + (lane >> 4)));
}

// acc (16, 8 kN) += A (16, kD) B^T, with A in rows [row, row + 16) of `a` and B in rows [0, 8 kN) of `b`.
template <int kD, int kN>
__device__ __forceinline__ void multiply_rows(float (&acc)[kN][4], SharedTile<kD> a, int row, SharedTile<kD> b, int lane) {
    // x4: two groups of 8 rows of B, each with the two halves of 16 columns
    const int b_row = (lane & 7) + ((lane >> 4) << 3);
    const int b_chunk = (lane >> 3) & 1;
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
        std::uint32_t fragment[4];
        load_a(fragment, a, row, k, lane);
#pragma unroll
        for (int n = 0; n < kN; n += 2) {
            std::uint32_t pair[4];
            load_matrix_x4(pair, b.chunk(8 * n + b_row, 2 * k + b_chunk));
            mma(acc[n], fragment, pair[0], pair[1]);
            mma(acc[n + 1], fragment, pair[2], pair[3]);
        }
    }
}

// acc (16, 8 kN) += P (16, kK) B^T, with P packed as bf16 pairs of accumulator fragments and B in rows [0, 8 kN) of `b`. kLower: B is lower
// triangular, and what lies above its diagonal is left out.
template <int kK, int kN, bool kLower = false>
__device__ __forceinline__ void multiply_fragments(float (&acc)[kN][4], const std::uint32_t (&p)[kK / 8][2], SharedTile<kK> b, int lane) {
    const int b_row = (lane & 7) + ((lane >> 4) << 3);
    const int b_chunk = (lane >> 3) & 1;
#pragma unroll
    for (int k = 0; k < kK / 16; ++k) {
        const std::uint32_t fragment[4] = {p[2 * k][0], p[2 * k][1], p[2 * k + 1][0], p[2 * k + 1][1]};
#pragma unroll
        for (int n = kLower ? 2 * k : 0; n < kN; n += 2) {
            std::uint32_t pair[4];
            load_matrix_x4(pair, b.chunk(8 * n + b_row, 2 * k + b_chunk));
            mma(acc[n], fragment, pair[0], pair[1]);
            mma(acc[n + 1], fragment, pair[2], pair[3]);
        }
    }
}

// acc (16, kD) += P (16, 8 kN) B, with P packed as bf16 pairs of accumulator fragments and B in rows [0, 8 kN) of `b`.
template <int kD, int kN>
__device__ __forceinline__ void multiply_columns(float (&acc)[kD / 8][4], const std::uint32_t (&p)[kN][2], SharedTile<kD> b, int lane) {
    const int b_row = lane & 15;
    const int b_chunk = lane >> 4;
#pragma unroll
    for (int k = 0; k < kN / 2; ++k) {
        const std::uint32_t fragment[4] = {p[2 * k][0], p[2 * k][1], p[2 * k + 1][0], p[2 * k + 1][1]};
#pragma unroll
        for (int d = 0; d < kD / 8; d += 2) {
            std::uint32_t pair[4];
            load_matrix_x4_transposed(pair, b.chunk(16 * k + b_row, d + b_chunk));
            mma(acc[d], fragment, pair[0], pair[1]);
            mma(acc[d + 1], fragment, pair[2], pair[3]);
        }
    }
}

}  // namespace dflash::cuda::device
