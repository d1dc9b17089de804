// SPDX-License-Identifier: MIT
// What both forms of the gated delta rule are given, and its gates (kernels/delta_rule.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/delta_rule.h"

namespace dflash::cuda {

struct DeltaArgs {
    const std::uint16_t *qkv, *b, *a;  // bf16
    const float *a_log, *dt_bias;
    const std::int32_t* document_begin;
    float* state;  // null: every document starts from zero
    std::uint16_t* out;
    int documents, key_heads, value_heads, key_dim, value_dim;

    static __device__ __forceinline__ float widen(std::uint16_t bits) { return __uint_as_float(static_cast<std::uint32_t>(bits) << 16); }
    __device__ __forceinline__ std::int64_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
    // Of q; k stands key_heads * key_dim further on.
    __device__ __forceinline__ const std::uint16_t* q_row(std::int64_t row, int head) const {
        return qkv + row * channels() + head / (value_heads / key_heads) * key_dim;
    }
    __device__ __forceinline__ const std::uint16_t* k_row(std::int64_t row, int head) const {
        return q_row(row, head) + key_heads * key_dim;
    }
    __device__ __forceinline__ const std::uint16_t* v_row(std::int64_t row, int head) const {
        return qkv + row * channels() + 2 * key_heads * key_dim + head * value_dim;
    }
    __device__ __forceinline__ std::uint16_t* out_row(std::int64_t row, int head) const {
        return out + (row * value_heads + head) * value_dim;
    }
    __device__ __forceinline__ std::int64_t state_elements() const { return static_cast<std::int64_t>(key_dim) * value_dim; }
    __device__ __forceinline__ float beta(std::int64_t row, int head) const {
        return 1.0F / (1.0F + expf(-widen(b[row * value_heads + head])));
    }
    __device__ __forceinline__ float log_decay(std::int64_t row, int head) const {
        const float x = widen(a[row * value_heads + head]) + dt_bias[head];
        return -expf(a_log[head]) * (x > 20.0F ? x : log1pf(expf(x)));
    }
    // Factor that normalises a row with this sum of squares.
    static __device__ __forceinline__ float inverse_length(float squares) { return rsqrtf(squares + 1e-6F); }
    __device__ __forceinline__ float q_scale() const { return rsqrtf(static_cast<float>(key_dim)); }
};

inline DeltaArgs delta_args(const char* op, const DeltaRuleParams& p) {
    check_bf16(op, {&p.qkv, &p.b, &p.a, &p.out});
    const auto bits = [](const Tensor& tensor) { return static_cast<std::uint16_t*>(tensor.data); };
    return {bits(p.qkv),
            bits(p.b),
            bits(p.a),
            p.a_log.f32(),
            p.dt_bias.f32(),
            p.document_begin.i32(),
            f32_or_null(p.state),
            bits(p.out),
            static_cast<int>(p.document_begin.elements() - 1),
            static_cast<int>(p.key_heads),
            static_cast<int>(p.value_heads),
            static_cast<int>(p.key_dim),
            static_cast<int>(p.value_dim)};
}

}  // namespace dflash::cuda
