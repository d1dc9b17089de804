// SPDX-License-Identifier: MIT
// A block a row of logits. One pass finds the maximum, the sum of exponentials and what the loss needs; a second turns logits into their
// gradient in place. A row of 248,320 words is 497 KB, more than a multiprocessor holds, so it is read twice and written once: the bound.
#include "kernels/backends.h"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/launch.cuh"

namespace dflash::cuda {
namespace {

using device::Bf16;
using device::kWarp;
using device::load;
using device::store;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;

// Running sums of exponentials relative to the largest value so far. `weighted` is the sum of e^(t - max) (t - z), for kl.
struct SoftmaxSums {
    float max = -INFINITY, sum = 0, weighted = 0;

    __device__ void raise(float to) {
        if (to <= max) return;
        const float factor = __expf(max - to);  // 0 at first
        sum *= factor;
        weighted *= factor;
        max = to;
    }
    __device__ void merge(const SoftmaxSums& other) {
        if (other.max == -INFINITY) {
            sum += other.sum;  // nothing, or NaN
            return;
        }
        raise(other.max);
        const float factor = __expf(other.max - max);
        sum += other.sum * factor;
        weighted += other.weighted * factor;
    }
    __device__ float log_sum() const { return max + __logf(sum); }
};

__device__ SoftmaxSums block_merge(SoftmaxSums mine, SoftmaxSums* shared) {
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
        SoftmaxSums other;
        other.max = __shfl_down_sync(0xffffffffu, mine.max, step);
        other.sum = __shfl_down_sync(0xffffffffu, mine.sum, step);
        other.weighted = __shfl_down_sync(0xffffffffu, mine.weighted, step);
        mine.merge(other);
    }
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = mine;
    __syncthreads();
    SoftmaxSums total = shared[0];
    for (int warp = 1; warp < kWarps; ++warp) total.merge(shared[warp]);
    __syncthreads();
    return total;
}

struct Args {
    Bf16* logits;
    const Bf16* teacher;  // null: ce
    const std::int32_t* labels;
    float *loss, *label_prob;
    std::int32_t* correct;
    std::int64_t vocabulary;
    bool want_gradient;
};

template <int kWidth, bool kKl>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(const __grid_constant__ Args a) {
    __shared__ SoftmaxSums shared[kWarps];
    __shared__ int beaten_by_warp[kWarps];
    Bf16* z = a.logits + blockIdx.x * a.vocabulary;
    const Bf16* t = kKl ? a.teacher + blockIdx.x * a.vocabulary : nullptr;
    const std::int32_t label = a.labels[blockIdx.x];
    const float label_logit = __bfloat162float(z[label]);

    SoftmaxSums draft, teacher;
    bool beaten = false;  // some logit is larger than the label's, or as large and before it
    for (std::int64_t i = threadIdx.x * kWidth; i < a.vocabulary; i += kThreads * kWidth) {
        float v[kWidth];
        load<kWidth>(z + i, v);
        float largest = v[0];
#pragma unroll
        for (int j = 1; j < kWidth; ++j) largest = fmaxf(largest, v[j]);
        draft.raise(largest);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) draft.sum += __expf(v[j] - draft.max);
        if (largest >= label_logit) {
#pragma unroll
            for (int j = 0; j < kWidth; ++j) beaten |= v[j] > label_logit || (v[j] == label_logit && i + j < label);
        }
        if constexpr (kKl) {
            float p[kWidth];
            load<kWidth>(t + i, p);
            largest = p[0];
#pragma unroll
            for (int j = 1; j < kWidth; ++j) largest = fmaxf(largest, p[j]);
            teacher.raise(largest);
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
                const float e = __expf(p[j] - teacher.max);
                teacher.sum += e;
                teacher.weighted += e * (p[j] - v[j]);
            }
        }
    }
    const bool any_beaten = __any_sync(0xffffffffu, beaten);
    if (threadIdx.x % kWarp == 0) beaten_by_warp[threadIdx.x / kWarp] = any_beaten;
    draft = block_merge(draft, shared);
    if constexpr (kKl) teacher = block_merge(teacher, shared);
    const float log_sum = draft.log_sum();
    if (threadIdx.x == 0) {
        bool largest = !isnan(log_sum);
        for (int warp = 0; warp < kWarps; ++warp) largest = largest && beaten_by_warp[warp] == 0;
        a.correct[blockIdx.x] = largest ? 1 : 0;
        a.label_prob[blockIdx.x] = __expf(label_logit - log_sum);
        // KL = sum p (t - z) - log sum of t + log sum of z
        a.loss[blockIdx.x] = kKl ? teacher.weighted / teacher.sum - teacher.log_sum() + log_sum : log_sum - label_logit;
    }
    if (!a.want_gradient) return;
    const float inverse = 1.0F / draft.sum;
    const float teacher_inverse = kKl ? 1.0F / teacher.sum : 0.0F;
    for (std::int64_t i = threadIdx.x * kWidth; i < a.vocabulary; i += kThreads * kWidth) {
        float v[kWidth];
        load<kWidth>(z + i, v);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) v[j] = __expf(v[j] - draft.max) * inverse;
        if constexpr (kKl) {
            float p[kWidth];
            load<kWidth>(t + i, p);
#pragma unroll
            for (int j = 0; j < kWidth; ++j) v[j] -= __expf(p[j] - teacher.max) * teacher_inverse;
        } else {
#pragma unroll
            for (int j = 0; j < kWidth; ++j) v[j] -= i + j == label ? 1.0F : 0.0F;
        }
        store<kWidth>(z + i, v);
    }
}

}  // namespace

void cross_entropy_forward_backward(const Context& context, const CrossEntropyParams& p) {
    check_bf16("cross_entropy", {&p.logits, &p.teacher_logits});
    const Args args{.logits = bf16(p.logits),
                    .teacher = bf16(p.teacher_logits),
                    .labels = p.labels.i32(),
                    .loss = p.loss.f32(),
                    .label_prob = p.label_prob.f32(),
                    .correct = p.correct.i32(),
                    .vocabulary = p.logits.row_elements(),
                    .want_gradient = p.want_gradient};
    const auto blocks = static_cast<unsigned>(p.logits.rows());
    with_width(in_vectors(args.vocabulary, {&p.logits, &p.teacher_logits}), [&](auto width) {
        constexpr int kWidth = decltype(width)::value;
        if (args.teacher != nullptr) {
            cross_entropy_kernel<kWidth, true><<<blocks, kThreads, 0, stream_of(context)>>>(args);
        } else {
            cross_entropy_kernel<kWidth, false><<<blocks, kThreads, 0, stream_of(context)>>>(args);
        }
    });
    DFLASH_LAUNCH_CHECK("cross_entropy");
}

}  // namespace dflash::cuda
