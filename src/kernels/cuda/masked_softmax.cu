// SPDX-License-Identifier: MIT
// One block a row, in passes over memory: what an attention that materialises its scores pays beside its products. Bound: device memory.
#include <cuda_bf16.h>

#include "kernels/backends.h"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/ref/mask_range.h"

namespace dflash::cuda {
namespace {

constexpr int kThreads = 256;

struct Largest {
    __device__ double operator()(double a, double b) const { return a >= b ? a : b; }
};
struct SoftmaxMask {
    const std::int32_t *begin_row, *anchor_row;
    long long live, block_size, window;
    bool causal_block;
};

__global__ void __launch_bounds__(kThreads)
    softmax_kernel(const float* scores, SoftmaxMask mask, float scale, __nv_bfloat16* p, long long rows, long long columns) {
    __shared__ double scratch[kThreads / device::kWarp];
    const long long row = blockIdx.x;
    const ref::MaskRange range =
        ref::mask_range(mask.begin_row, mask.anchor_row, mask.live, mask.block_size, mask.window, mask.causal_block, columns - rows, row);
    const float* in = scores + row * columns;
    float own = -INFINITY;
    for (long long c = threadIdx.x; c < columns; c += kThreads) {
        if (range.sees(c)) own = fmaxf(own, scale * in[c]);
    }
    const auto largest = static_cast<float>(device::block_reduce<kThreads>(static_cast<double>(own), Largest(), scratch));
    double sum = 0;
    for (long long c = threadIdx.x; c < columns; c += kThreads) {
        if (range.sees(c)) sum += static_cast<double>(expf(scale * in[c] - largest));
    }
    sum = device::block_sum<kThreads>(sum, scratch);
    const float inverse = sum > 0 ? static_cast<float>(1 / sum) : 0.0F;
    for (long long c = threadIdx.x; c < columns; c += kThreads) {
        p[row * columns + c] = __float2bfloat16(range.sees(c) ? expf(scale * in[c] - largest) * inverse : 0.0F);
    }
}

__global__ void __launch_bounds__(kThreads)
    softmax_backward_kernel(const __nv_bfloat16* p, const float* d_p, float scale, __nv_bfloat16* d_scores, long long columns) {
    __shared__ double scratch[kThreads / device::kWarp];
    const long long begin = blockIdx.x * columns;
    double sum = 0;
    for (long long c = threadIdx.x; c < columns; c += kThreads) {
        sum += static_cast<double>(__bfloat162float(p[begin + c])) * static_cast<double>(d_p[begin + c]);
    }
    sum = device::block_sum<kThreads>(sum, scratch);
    for (long long c = threadIdx.x; c < columns; c += kThreads) {
        d_scores[begin + c] = __float2bfloat16(scale * __bfloat162float(p[begin + c]) * (d_p[begin + c] - static_cast<float>(sum)));
    }
}

template <typename T>
T* pointer(const Tensor& tensor) {
    return static_cast<T*>(tensor.data);
}

}  // namespace

void masked_softmax_forward(const Context& context, const MaskedSoftmaxParams& p) {
    const SoftmaxMask mask{pointer<const std::int32_t>(p.mask.begin_row),
                           pointer<const std::int32_t>(p.mask.anchor_row),
                           p.mask.num_live,
                           p.mask.block_size,
                           p.mask.window,
                           p.mask.causal_block};
    softmax_kernel<<<static_cast<unsigned>(p.scores.rows()), kThreads, 0, stream_of(context)>>>(
        p.scores.f32(), mask, p.scale, pointer<__nv_bfloat16>(p.p), p.scores.rows(), p.scores.row_elements());
    DFLASH_LAUNCH_CHECK("masked_softmax_forward");
}

void masked_softmax_backward(const Context& context, const MaskedSoftmaxBackwardParams& p) {
    softmax_backward_kernel<<<static_cast<unsigned>(p.d_p.rows()), kThreads, 0, stream_of(context)>>>(
        pointer<const __nv_bfloat16>(p.p), p.d_p.f32(), p.scale, pointer<__nv_bfloat16>(p.d_scores), p.d_p.row_elements());
    DFLASH_LAUNCH_CHECK("masked_softmax_backward");
}

}  // namespace dflash::cuda
