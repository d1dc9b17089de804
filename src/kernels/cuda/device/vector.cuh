// SPDX-License-Identifier: MIT
// Loads and stores of kWidth neighbouring elements as floats (16 bytes of bf16 at kWidth 8), and reductions over a warp or a block in a fixed order.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace dflash::cuda::device {

using Bf16 = __nv_bfloat16;
constexpr int kWarp = 32;

template <int kWidth>
__device__ __forceinline__ void load(const Bf16* from, float (&x)[kWidth]) {
    if constexpr (kWidth == 8) {
        const uint4 bits = *reinterpret_cast<const uint4*>(from);
        const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[2 * i] = __uint_as_float(words[i] << 16);
            x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    } else if constexpr (kWidth == 2) {
        const std::uint32_t bits = *reinterpret_cast<const std::uint32_t*>(from);
        x[0] = __uint_as_float(bits << 16);
        x[1] = __uint_as_float(bits & 0xffff0000u);
    } else {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) x[i] = __bfloat162float(from[i]);
    }
}

template <int kWidth>
__device__ __forceinline__ void load(const float* from, float (&x)[kWidth]) {
    if constexpr (kWidth % 4 == 0) {
#pragma unroll
        for (int i = 0; i < kWidth / 4; ++i) {
            const float4 part = reinterpret_cast<const float4*>(from)[i];
            x[4 * i] = part.x, x[4 * i + 1] = part.y, x[4 * i + 2] = part.z, x[4 * i + 3] = part.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) x[i] = from[i];
    }
}

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
}

template <int kWidth>
__device__ __forceinline__ void store(Bf16* to, const float (&x)[kWidth]) {
    if constexpr (kWidth == 8) {
        *reinterpret_cast<uint4*>(to) =
            make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
    } else if constexpr (kWidth == 2) {
        *reinterpret_cast<std::uint32_t*>(to) = pack_bf16(x[0], x[1]);
    } else {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) to[i] = __float2bfloat16_rn(x[i]);
    }
}

template <int kWidth>
__device__ __forceinline__ void store(float* to, const float (&x)[kWidth]) {
    if constexpr (kWidth % 4 == 0) {
#pragma unroll
        for (int i = 0; i < kWidth / 4; ++i)
            reinterpret_cast<float4*>(to)[i] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    } else {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) to[i] = x[i];
    }
}

struct Sum {
    template <typename T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return a + b;
    }
};

template <typename T, typename Combine>
__device__ __forceinline__ T warp_reduce(T value, Combine combine) {
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
}
template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
    return warp_reduce(value, Sum());
}

// One value of all of a block's threads, known to each; `shared` has room for a value a warp and may be used again at once.
template <int kThreads, typename T, typename Combine>
__device__ __forceinline__ T block_reduce(T value, Combine combine, T* shared) {
    constexpr int kWarps = kThreads / kWarp;
    value = warp_reduce(value, combine);
    if constexpr (kWarps == 1) return value;
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
    __syncthreads();
    T total = shared[0];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) total = combine(total, shared[warp]);
    __syncthreads();
    return total;
}
template <int kThreads, typename T>
__device__ __forceinline__ T block_sum(T value, T* shared) {
    return block_reduce<kThreads>(value, Sum(), shared);
}

}  // namespace dflash::cuda::device
