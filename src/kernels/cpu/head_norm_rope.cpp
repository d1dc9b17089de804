// SPDX-License-Identifier: MIT
#include <cmath>

#include "kernels/backends.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/head_norm_rope.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/cpu/vector-inl.h"

#ifndef DFLASH_HEAD_NORM_ROPE_LIMITS
#define DFLASH_HEAD_NORM_ROPE_LIMITS
namespace dflash::cpu {
// A normalised head stands on the stack; the weight's gradient is summed in this many parts, whatever the thread count.
constexpr std::int64_t kMaxHeadDim = 512;
constexpr std::int64_t kGradientParts = 16;
}  // namespace dflash::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace dflash::cpu::HWY_NAMESPACE {

void head_norm_rope_rows(const HeadNormRopeForwardParams& p, std::int64_t begin, std::int64_t end) {
    const std::int64_t heads = p.y.shape[1];
    const std::int64_t head_dim = p.y.shape[2];
    const std::int64_t half = p.cos.row_elements();
    const std::int64_t head_stride = p.x_head_stride != 0 ? p.x_head_stride : head_dim;
    const std::int64_t row_stride = p.x_row_stride != 0 ? p.x_row_stride : heads * head_stride;
    const float* weight = p.weight.defined() ? p.weight.f32() : nullptr;
    const F32Vector offset = hn::Set(F32(), p.weight_offset);
    HWY_ALIGN float n[kMaxHeadDim];
    for (std::int64_t r = begin; r < end; ++r) {
        const float* cos = p.cos.f32() + p.positions.i32()[r] * half;
        const float* sin = p.sin.f32() + p.positions.i32()[r] * half;
        for (std::int64_t h = 0; h < heads; ++h) {
            const float* x = p.x.f32() + r * row_stride + h * head_stride;
            float* y = p.y.f32() + (r * heads + h) * head_dim;
            if (weight != nullptr) {
                F32Vector sum = hn::Zero(F32());
                for_each_vector(head_dim, [&](auto at) { sum = hn::MulAdd(at.load(x), at.load(x), sum); });
                const float rstd = 1.0F / std::sqrt(sum_of_lanes(sum) / static_cast<float>(head_dim) + p.eps);
                if (p.rstd.defined()) p.rstd.f32()[r * heads + h] = rstd;
                const F32Vector scale = hn::Set(F32(), rstd);
                for_each_vector(head_dim,
                                [&](auto at) { at.store(hn::Mul(hn::Add(offset, at.load(weight)), hn::Mul(at.load(x), scale)), n); });
            } else {
                std::memcpy(n, x, static_cast<std::size_t>(head_dim) * sizeof(float));
            }
            for_each_vector(half, [&](auto at) {
                const F32Vector a = at.load(n), b = at.load(n + half), c = at.load(cos), s = at.load(sin);
                at.store(hn::NegMulAdd(b, s, hn::Mul(a, c)), y);
                at.store(hn::MulAdd(a, s, hn::Mul(b, c)), y + half);
            });
            std::memcpy(y + 2 * half, n + 2 * half, static_cast<std::size_t>(head_dim - 2 * half) * sizeof(float));
        }
    }
}

// d_weight (D) += the rows' part.
void head_norm_rope_backward_rows(const HeadNormRopeBackwardParams& p, std::int64_t begin, std::int64_t end, float* d_weight) {
    const std::int64_t heads = p.x.shape[1];
    const std::int64_t head_dim = p.x.shape[2];
    const std::int64_t half = p.cos.row_elements();
    const float* weight = p.weight.f32();
    const F32Vector offset = hn::Set(F32(), p.weight_offset);
    HWY_ALIGN float d_n[kMaxHeadDim];
    for (std::int64_t r = begin; r < end; ++r) {
        const float* cos = p.cos.f32() + p.positions.i32()[r] * half;
        const float* sin = p.sin.f32() + p.positions.i32()[r] * half;
        for (std::int64_t h = 0; h < heads; ++h) {
            const float* x = p.x.f32() + (r * heads + h) * head_dim;
            const float* d_y = p.d_y.f32() + (r * heads + h) * head_dim;
            float* d_x = p.d_x.f32() + (r * heads + h) * head_dim;
            for_each_vector(half, [&](auto at) {
                const F32Vector a = at.load(d_y), b = at.load(d_y + half), c = at.load(cos), s = at.load(sin);
                at.store(hn::MulAdd(b, s, hn::Mul(a, c)), d_n);
                at.store(hn::NegMulAdd(a, s, hn::Mul(b, c)), d_n + half);
            });
            std::memcpy(d_n + 2 * half, d_y + 2 * half, static_cast<std::size_t>(head_dim - 2 * half) * sizeof(float));
            const F32Vector rstd = hn::Set(F32(), p.rstd.f32()[r * heads + h]);
            F32Vector sum = hn::Zero(F32());
            for_each_vector(head_dim, [&](auto at) {
                const F32Vector g = hn::Mul(at.load(d_n), hn::Add(offset, at.load(weight)));
                const F32Vector n = hn::Mul(at.load(x), rstd);
                sum = hn::MulAdd(at.zero_beyond(g), n, sum);
                at.store(hn::MulAdd(at.load(d_n), n, at.load(d_weight)), d_weight);
            });
            const F32Vector mean = hn::Set(F32(), sum_of_lanes(sum) / static_cast<float>(head_dim));
            for_each_vector(head_dim, [&](auto at) {
                const F32Vector g = hn::Mul(at.load(d_n), hn::Add(offset, at.load(weight)));
                at.store(hn::Mul(rstd, hn::NegMulAdd(hn::Mul(at.load(x), rstd), mean, g)), d_x);
            });
        }
    }
}

}  // namespace dflash::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::cpu {

HWY_EXPORT(head_norm_rope_rows);
HWY_EXPORT(head_norm_rope_backward_rows);

void head_norm_rope_forward(const Context&, const HeadNormRopeForwardParams& p) {
    DFLASH_CHECK(p.y.shape[2] <= kMaxHeadDim, "head_norm_rope: heads of {}, at most {}", p.y.shape[2], kMaxHeadDim);
    parallel_ranges(p.y.rows(), p.y.row_elements(), [&](std::int64_t begin, std::int64_t end) {
        HWY_DYNAMIC_DISPATCH(head_norm_rope_rows)(p, begin, end);
    });
}

void head_norm_rope_backward(const Context&, const HeadNormRopeBackwardParams& p) {
    const std::int64_t rows = p.x.rows();
    const std::int64_t head_dim = p.x.shape[2];
    DFLASH_CHECK(head_dim <= kMaxHeadDim, "head_norm_rope: heads of {}, at most {}", head_dim, kMaxHeadDim);
    float partial[kGradientParts][kMaxHeadDim] = {};
    parallel_ranges(kGradientParts, p.x.elements() / kGradientParts, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t part = begin; part < end; ++part) {
            HWY_DYNAMIC_DISPATCH(head_norm_rope_backward_rows)
            (p, rows * part / kGradientParts, rows * (part + 1) / kGradientParts, partial[part]);
        }
    });
    float* d_weight = p.d_weight.f32();
    for (const auto& part : partial) {
        for (std::int64_t i = 0; i < head_dim; ++i) d_weight[i] += part[i];
    }
}

std::size_t head_norm_rope_backward_workspace_bytes(std::int64_t) { return 0; }

}  // namespace dflash::cpu
#endif  // HWY_ONCE
