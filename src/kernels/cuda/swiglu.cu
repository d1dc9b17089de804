// SPDX-License-Identifier: MIT
// Bound by bytes: every tensor passes once.
#include "kernels/backends.h"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/launch.cuh"

namespace dflash::cuda {
namespace {

using device::Bf16;
using device::load;
using device::store;

constexpr int kThreads = 256;

__device__ __forceinline__ float sigmoid(float x) { return 1.0F / (1.0F + __expf(-x)); }

template <int kWidth>
__global__ void swiglu_forward_kernel(const Bf16* gate, const Bf16* up, Bf16* y, std::int64_t n) {
    const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads * kWidth;
    for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth; i < n; i += stride) {
        float g[kWidth], u[kWidth];
        load<kWidth>(gate + i, g);
        load<kWidth>(up + i, u);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) g[j] = g[j] * sigmoid(g[j]) * u[j];
        store<kWidth>(y + i, g);
    }
}

// y may be null, or d_y itself.
template <int kWidth>
__global__ void swiglu_backward_kernel(const Bf16* d_y, const Bf16* gate, const Bf16* up, Bf16* d_gate, Bf16* d_up, Bf16* y,
                                       std::int64_t n) {
    const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads * kWidth;
    for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth; i < n; i += stride) {
        float d[kWidth], g[kWidth], u[kWidth], made[kWidth];
        load<kWidth>(d_y + i, d);
        load<kWidth>(gate + i, g);
        load<kWidth>(up + i, u);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
            const float s = sigmoid(g[j]);
            const float silu = g[j] * s;
            made[j] = silu * u[j];
            const float slope = s * (1.0F + g[j] * (1.0F - s));
            g[j] = d[j] * u[j] * slope;
            u[j] = d[j] * silu;
        }
        store<kWidth>(d_gate + i, g);
        store<kWidth>(d_up + i, u);
        if (y != nullptr) store<kWidth>(y + i, made);
    }
}

template <int kWidth>
__global__ void sigmoid_gate_kernel(const Bf16* gate, std::int64_t row_stride, std::int64_t head_stride, Bf16* y, std::int64_t heads,
                                    std::int64_t head_dim, std::int64_t n) {
    const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads * kWidth;
    for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth; i < n; i += stride) {
        const std::int64_t head = i / head_dim;
        float g[kWidth], v[kWidth];
        load<kWidth>(gate + head / heads * row_stride + head % heads * head_stride + i % head_dim, g);
        load<kWidth>(y + i, v);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) v[j] *= sigmoid(g[j]);
        store<kWidth>(y + i, v);
    }
}

}  // namespace

void swiglu_forward(const Context& context, const SwigluForwardParams& p) {
    check_bf16("swiglu_forward", {&p.gate, &p.up, &p.y});
    const std::int64_t n = p.gate.elements();
    with_width(in_vectors(n, {&p.gate, &p.up, &p.y}), [&](auto width) {
        constexpr int kWidth = decltype(width)::value;
        swiglu_forward_kernel<kWidth>
            <<<blocks_for(n, kThreads * kWidth), kThreads, 0, stream_of(context)>>>(bf16(p.gate), bf16(p.up), bf16(p.y), n);
    });
    DFLASH_LAUNCH_CHECK("swiglu_forward");
}

void swiglu_backward(const Context& context, const SwigluBackwardParams& p) {
    check_bf16("swiglu_backward", {&p.d_y, &p.gate, &p.up, &p.d_gate, &p.d_up, &p.y});
    const std::int64_t n = p.gate.elements();
    with_width(in_vectors(n, {&p.d_y, &p.gate, &p.up, &p.d_gate, &p.d_up, &p.y}), [&](auto width) {
        constexpr int kWidth = decltype(width)::value;
        swiglu_backward_kernel<kWidth><<<blocks_for(n, kThreads * kWidth), kThreads, 0, stream_of(context)>>>(
            bf16(p.d_y), bf16(p.gate), bf16(p.up), bf16(p.d_gate), bf16(p.d_up), bf16(p.y), n);
    });
    DFLASH_LAUNCH_CHECK("swiglu_backward");
}

void sigmoid_gate_forward(const Context& context, const SigmoidGateParams& p) {
    check_bf16("sigmoid_gate_forward", {&p.gate, &p.y});
    const std::int64_t n = p.y.elements();
    const std::int64_t heads = p.y.shape[1], head_dim = p.y.shape[2];
    const bool vectors = in_vectors(head_dim, {&p.gate, &p.y}) && p.gate_row_stride % kVector == 0 && p.gate_head_stride % kVector == 0;
    with_width(vectors, [&](auto width) {
        constexpr int kWidth = decltype(width)::value;
        sigmoid_gate_kernel<kWidth><<<blocks_for(n, kThreads * kWidth), kThreads, 0, stream_of(context)>>>(
            bf16(p.gate), p.gate_row_stride, p.gate_head_stride, bf16(p.y), heads, head_dim, n);
    });
    DFLASH_LAUNCH_CHECK("sigmoid_gate_forward");
}

}  // namespace dflash::cuda
