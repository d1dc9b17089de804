// SPDX-License-Identifier: MIT
// Softmax over accumulator fragments: running maximum and sum of a thread's two rows, in base 2 (scores times scale * log2 e).
#pragma once

#include "mma.cuh"

namespace dflash::cuda::device {

constexpr float kLog2E = 1.44269504088896341F;
constexpr float kLn2 = 0.69314718055994531F;

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffU, x, 1);
    return x + __shfl_xor_sync(0xffffffffU, x, 2);
}

struct OnlineSoftmax {
    float largest[2] = {-__builtin_huge_valf(), -__builtin_huge_valf()};
    float sum[2] = {0.0F, 0.0F};  // this thread's columns only

    // Scores become exp2(scale2 * (score - maximum)); returns in `rescale` what earlier sums and outputs must be multiplied by.
    template <int kN>
    __device__ __forceinline__ void step(float (&scores)[kN][4], float scale2, float (&rescale)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float top = scores[0][2 * half];
#pragma unroll
            for (int n = 0; n < kN; ++n) top = fmaxf(top, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
            top = fmaxf(quad_max(top), largest[half]);
            const float base = top == -__builtin_huge_valf() ? 0.0F : top * scale2;  // a row that saw nothing yet
            // exactly 1 without a new maximum: a tile that shows a row nothing leaves its sums as they are
            rescale[half] = largest[half] == top ? 1.0F : exp2_fast((largest[half] - top) * scale2);
            largest[half] = top;
            float total = sum[half] * rescale[half];
#pragma unroll
            for (int n = 0; n < kN; ++n) {
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const float p = exp2_fast(fmaf(scores[n][2 * half + j], scale2, -base));
                    scores[n][2 * half + j] = p;
                    total += p;
                }
            }
            sum[half] = total;
        }
    }
    // After the last tile: 1 / sum and the natural log-sum-exp of each row; both 0 for a row that saw nothing.
    __device__ __forceinline__ void finish(float scale2, const bool (&live)[2], float (&inverse)[2], float (&lse)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float total = quad_sum(sum[half]);
            const bool any = live[half] && total != 0.0F;  // NaN stays NaN
            inverse[half] = any ? 1.0F / total : 0.0F;
            lse[half] = any ? (largest[half] * scale2) * kLn2 + __logf(total) : 0.0F;
        }
    }
};

template <int kN>
__device__ __forceinline__ void pack_fragments(const float (&acc)[kN][4], std::uint32_t (&packed)[kN][2]) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
        packed[n][0] = pack_bf16(acc[n][0], acc[n][1]);
        packed[n][1] = pack_bf16(acc[n][2], acc[n][3]);
    }
}

template <int kN>
__device__ __forceinline__ void rescale_rows(float (&acc)[kN][4], const float (&factor)[2]) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
        acc[n][0] *= factor[0];
        acc[n][1] *= factor[0];
        acc[n][2] *= factor[1];
        acc[n][3] *= factor[1];
    }
}

// The same, left out where no row of the warp has a new maximum: most tiles of a long prefix.
template <int kN>
__device__ __forceinline__ void rescale_changed_rows(float (&acc)[kN][4], const float (&factor)[2]) {
    if (__any_sync(0xffffffffU, factor[0] != 1.0F || factor[1] != 1.0F)) rescale_rows(acc, factor);
}

template <int kN>
__device__ __forceinline__ void fill_zero(float (&acc)[kN][4]) {
#pragma unroll
    for (int n = 0; n < kN; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0F;
}

// Writes the thread's share of two rows as bf16. The four threads of a quad hold two columns of each 8; they exchange them, so that each
// writes 16 bytes. rows[h] is null for a row that is not written; zeros are written unless keep[h]. All lanes of the warp must call.
template <int kN>
__device__ __forceinline__ void store_rows(const float (&acc)[kN][4], Bf16Bits* const (&rows)[2], const bool (&keep)[2], int head_dim,
                                           int lane) {
    const bool odd = (lane & 1) != 0;
    const bool upper = (lane & 2) != 0;
#pragma unroll
    for (int group = 0; group < kN / 4; ++group) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            std::uint32_t v[4];
#pragma unroll
            for (int t = 0; t < 4; ++t) v[t] = pack_bf16(acc[4 * group + t][2 * half], acc[4 * group + t][2 * half + 1]);
            // a 4x4 transposition over the quad in two exchanges
            const std::uint32_t far0 = __shfl_xor_sync(0xffffffffU, upper ? v[0] : v[2], 2);
            const std::uint32_t far1 = __shfl_xor_sync(0xffffffffU, upper ? v[1] : v[3], 2);
            const std::uint32_t keep0 = upper ? v[2] : v[0];
            const std::uint32_t keep1 = upper ? v[3] : v[1];
            const std::uint32_t near0 = __shfl_xor_sync(0xffffffffU, odd ? keep0 : keep1, 1);
            const std::uint32_t near1 = __shfl_xor_sync(0xffffffffU, odd ? far0 : far1, 1);
            const std::uint32_t mine0 = odd ? keep1 : keep0;
            const std::uint32_t mine1 = odd ? far1 : far0;
            const std::uint32_t x0 = odd ? near0 : mine0, x1 = odd ? mine0 : near0;
            const std::uint32_t y0 = odd ? near1 : mine1, y1 = odd ? mine1 : near1;
            uint4 chunk = upper ? make_uint4(y0, y1, x0, x1) : make_uint4(x0, x1, y0, y1);
            if (!keep[half]) chunk = make_uint4(0, 0, 0, 0);
            const int column = 8 * (4 * group + (lane & 3));
            if (rows[half] != nullptr && column < head_dim) *reinterpret_cast<uint4*>(rows[half] + column) = chunk;
        }
    }
}

}  // namespace dflash::cuda::device
