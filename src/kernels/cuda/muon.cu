// SPDX-License-Identifier: MIT
#include "kernels/backends.h"
#include "kernels/cuda/device/split_weight.cuh"
#include "kernels/cuda/launch.cuh"

namespace dflash::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 1024;  // partial sums of squares

// m and the not yet normalised x; partial sums of squares of x.
__global__ void momentum_kernel(const void* gradient, bool bf16_gradient, float* m, float decay, const double* grad_scale, device::Bf16* x,
                                std::int64_t n, double* partial) {
    __shared__ double shared[kThreads / device::kWarp];
    const double scale = *grad_scale;
    const bool update = isfinite(scale);
    double squares = 0;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += kBlocks * kThreads) {
        float u = 0;
        if (update) {
            float g[1];
            device::load_gradient<1>(gradient, bf16_gradient, i, g);
            const float scaled = g[0] * static_cast<float>(scale);
            m[i] = decay * m[i] + scaled;
            u = scaled + decay * m[i];
        }
        x[i] = __float2bfloat16_rn(u);
        squares += static_cast<double>(u) * static_cast<double>(u);
    }
    squares = device::block_sum<kThreads>(squares, shared);
    if (threadIdx.x == 0) partial[blockIdx.x] = squares;
}

__global__ void norm_kernel(double* partial) {
    __shared__ double shared[kThreads / device::kWarp];
    double squares = 0;
    for (int i = threadIdx.x; i < kBlocks; i += kThreads) squares += partial[i];
    squares = device::block_sum<kThreads>(squares, shared);
    if (threadIdx.x == 0) partial[kBlocks] = squares > 0 ? 1.0 / sqrt(squares) : 0.0;
}

__global__ void normalise_kernel(device::Bf16* x, std::int64_t n, const double* inverse_norm) {
    const auto factor = static_cast<float>(*inverse_norm);
    const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride)
        x[i] = __float2bfloat16_rn(__bfloat162float(x[i]) * factor);
}

__global__ void update_kernel(void* weight, std::uint16_t* remainder, const device::Bf16* x, float rate, float keep,
                              const double* grad_scale, std::int64_t n) {
    if (!isfinite(*grad_scale)) return;
    const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
        float w[1];
        device::load_weights<1>(weight, remainder, i, w);
        w[0] = keep * w[0] - rate * __bfloat162float(x[i]);
        device::store_weights<1>(weight, remainder, i, w);
    }
}

}  // namespace

void muon_momentum(const Context& context, const MuonMomentumParams& p) {
    const std::int64_t n = p.x.elements();
    auto* partial = static_cast<double*>(context.workspace((kBlocks + 1) * sizeof(double)));
    momentum_kernel<<<kBlocks, kThreads, 0, stream_of(context)>>>(p.gradient.data, p.gradient.dtype == DType::kBF16, p.momentum.f32(),
                                                                  p.decay, p.grad_scale.f64(), bf16(p.x), n, partial);
    DFLASH_LAUNCH_CHECK("muon_momentum");
    norm_kernel<<<1, kThreads, 0, stream_of(context)>>>(partial);
    DFLASH_LAUNCH_CHECK("muon_momentum, norm");
    normalise_kernel<<<blocks_for(n, 4 * kThreads), kThreads, 0, stream_of(context)>>>(bf16(p.x), n, partial + kBlocks);
    DFLASH_LAUNCH_CHECK("muon_momentum, normalise");
}

void muon_update(const Context& context, const MuonUpdateParams& p) {
    const std::int64_t n = p.x.elements();
    update_kernel<<<blocks_for(n, 4 * kThreads), kThreads, 0, stream_of(context)>>>(
        p.weight.data, static_cast<std::uint16_t*>(p.remainder.data), bf16(p.x), p.rate, p.keep, p.grad_scale.f64(), n);
    DFLASH_LAUNCH_CHECK("muon_update");
}

}  // namespace dflash::cuda
