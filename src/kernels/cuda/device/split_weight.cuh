// SPDX-License-Identifier: MIT
// Master weights as kernels/adamw.h defines them: f32, or a bf16 weight and the u16 rest of the same 32 bits.
#pragma once

#include "kernels/cuda/device/vector.cuh"

namespace dflash::cuda::device {

__device__ __forceinline__ float join_weight(std::uint16_t weight, std::uint16_t remainder) {
    const std::uint32_t rest = static_cast<std::uint32_t>(static_cast<std::int32_t>(static_cast<std::int16_t>(remainder)));
    return __uint_as_float((static_cast<std::uint32_t>(weight) << 16) + rest);
}
__device__ __forceinline__ void split_weight(float value, std::uint16_t& weight, std::uint16_t& remainder) {
    const std::uint32_t bits = __float_as_uint(value);
    weight = static_cast<std::uint16_t>((bits + 0x8000u) >> 16);
    remainder = static_cast<std::uint16_t>(bits);  // the lower half is the same whatever the upper one was rounded to
}

// kWidth neighbouring weights from `at` on. Width 8: both parts on 16 bytes.
template <int kWidth>
__device__ __forceinline__ void load_weights(const void* weight, const std::uint16_t* remainder, std::int64_t at, float (&w)[kWidth]) {
    if (remainder == nullptr) return load<kWidth>(static_cast<const float*>(weight) + at, w);
    alignas(16) std::uint16_t high[kWidth], low[kWidth];
    if constexpr (kWidth == 8) {
        *reinterpret_cast<uint4*>(high) = *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(weight) + at);
        *reinterpret_cast<uint4*>(low) = *reinterpret_cast<const uint4*>(remainder + at);
    } else {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) high[i] = static_cast<const std::uint16_t*>(weight)[at + i], low[i] = remainder[at + i];
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) w[i] = join_weight(high[i], low[i]);
}

template <int kWidth>
__device__ __forceinline__ void store_weights(void* weight, std::uint16_t* remainder, std::int64_t at, const float (&w)[kWidth]) {
    if (remainder == nullptr) return store<kWidth>(static_cast<float*>(weight) + at, w);
    alignas(16) std::uint16_t high[kWidth], low[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) split_weight(w[i], high[i], low[i]);
    if constexpr (kWidth == 8) {
        *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(weight) + at) = *reinterpret_cast<const uint4*>(high);
        *reinterpret_cast<uint4*>(remainder + at) = *reinterpret_cast<const uint4*>(low);
    } else {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) static_cast<std::uint16_t*>(weight)[at + i] = high[i], remainder[at + i] = low[i];
    }
}

// Gradients are bf16 or f32.
template <int kWidth>
__device__ __forceinline__ void load_gradient(const void* gradient, bool is_bf16, std::int64_t at, float (&g)[kWidth]) {
    if (is_bf16) {
        load<kWidth>(static_cast<const Bf16*>(gradient) + at, g);
    } else {
        load<kWidth>(static_cast<const float*>(gradient) + at, g);
    }
}

}  // namespace dflash::cuda::device
