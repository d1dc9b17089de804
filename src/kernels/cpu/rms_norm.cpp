// SPDX-License-Identifier: MIT
#include <cmath>

#include "kernels/backends.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rms_norm.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dflash::cpu::HWY_NAMESPACE {

float row_rstd(const float* x, std::int64_t columns, float eps) {
    F32Vector sum = hn::Zero(F32());
    for_each_vector(columns, [&](auto at) {
        const F32Vector v = at.load(x);
        sum = hn::MulAdd(v, v, sum);
    });
    return 1.0F / std::sqrt(sum_of_lanes(sum) / static_cast<float>(columns) + eps);
}

void rms_norm_rows(const RmsNormForwardParams& p, std::int64_t begin, std::int64_t end) {
    const std::int64_t columns = p.weight.elements();
    const float* weight = p.weight.f32();
    const F32Vector offset = hn::Set(F32(), p.weight_offset);
    for (std::int64_t r = begin; r < end; ++r) {
        float* x = p.x.f32() + r * columns;
        float* y = p.y.f32() + r * columns;
        if (p.residual.defined()) {
            const float* residual = p.residual.f32() + r * columns;
            for_each_vector(columns, [&](auto at) { at.store(hn::Add(at.load(x), at.load(residual)), x); });
        }
        const float rstd = row_rstd(x, columns, p.eps);
        if (p.rstd.defined()) p.rstd.f32()[r] = rstd;
        const F32Vector scale = hn::Set(F32(), rstd);
        for_each_vector(columns, [&](auto at) { at.store(hn::Mul(hn::Add(offset, at.load(weight)), hn::Mul(at.load(x), scale)), y); });
    }
}

void rms_norm_backward_rows(const RmsNormBackwardParams& p, std::int64_t begin, std::int64_t end) {
    const std::int64_t columns = p.weight.elements();
    const float* weight = p.weight.f32();
    const F32Vector offset = hn::Set(F32(), p.weight_offset);
    const bool accumulate = p.write == Write::kAccumulate;
    for (std::int64_t r = begin; r < end; ++r) {
        const float* x = p.x.f32() + r * columns;
        const float* d_y = p.d_y.f32() + r * columns;
        float* d_x = p.d_x.f32() + r * columns;
        const F32Vector rstd = hn::Set(F32(), p.rstd.f32()[r]);
        F32Vector sum = hn::Zero(F32());
        for_each_vector(columns, [&](auto at) {
            const F32Vector g = hn::Mul(at.load(d_y), hn::Add(offset, at.load(weight)));
            sum = hn::MulAdd(at.zero_beyond(g), hn::Mul(at.load(x), rstd), sum);
        });
        const F32Vector mean = hn::Set(F32(), sum_of_lanes(sum) / static_cast<float>(columns));
        for_each_vector(columns, [&](auto at) {
            const F32Vector g = hn::Mul(at.load(d_y), hn::Add(offset, at.load(weight)));
            const F32Vector n = hn::Mul(at.load(x), rstd);
            const F32Vector d = hn::Mul(rstd, hn::NegMulAdd(n, mean, g));
            at.store(accumulate ? hn::Add(at.load(d_x), d) : d, d_x);
        });
    }
}

// Columns [begin, end) of the weight's gradient, rows in order.
void rms_norm_backward_columns(const RmsNormBackwardParams& p, std::int64_t begin, std::int64_t end) {
    const std::int64_t columns = p.weight.elements();
    float* d_weight = p.d_weight.f32() + begin;
    for (std::int64_t r = 0; r < p.x.rows(); ++r) {
        const float* x = p.x.f32() + r * columns + begin;
        const float* d_y = p.d_y.f32() + r * columns + begin;
        const F32Vector rstd = hn::Set(F32(), p.rstd.f32()[r]);
        for_each_vector(end - begin,
                        [&](auto at) { at.store(hn::MulAdd(at.load(d_y), hn::Mul(at.load(x), rstd), at.load(d_weight)), d_weight); });
    }
}

void gated_rms_norm_rows(const GatedRmsNormParams& p, std::int64_t begin, std::int64_t end) {
    const std::int64_t columns = p.weight.elements();
    const float* weight = p.weight.f32();
    for (std::int64_t r = begin; r < end; ++r) {
        const float* x = p.x.f32() + r * columns;
        const float* z = p.z.f32() + r * columns;
        float* y = p.y.f32() + r * columns;
        const F32Vector rstd = hn::Set(F32(), row_rstd(x, columns, p.eps));
        for_each_vector(columns, [&](auto at) {
            const F32Vector gate = at.load(z);
            const F32Vector s = sigmoid(gate);
            const F32Vector n = hn::Mul(at.load(weight), hn::Mul(at.load(x), rstd));
            at.store(hn::Mul(n, p.sigmoid_gate ? s : hn::Mul(gate, s)), y);
        });
    }
}

}  // namespace dflash::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::cpu {

HWY_EXPORT(rms_norm_rows);
HWY_EXPORT(rms_norm_backward_rows);
HWY_EXPORT(rms_norm_backward_columns);
HWY_EXPORT(gated_rms_norm_rows);

void rms_norm_forward(const Context&, const RmsNormForwardParams& p) {
    parallel_ranges(p.x.rows(), p.weight.elements(), [&](std::int64_t begin, std::int64_t end) {
        HWY_DYNAMIC_DISPATCH(rms_norm_rows)(p, begin, end);
    });
}

void rms_norm_backward(const Context&, const RmsNormBackwardParams& p) {
    // The weight's gradient first: d_x may be d_y.
    parallel_ranges(p.weight.elements(), p.x.rows(), [&](std::int64_t begin, std::int64_t end) {
        HWY_DYNAMIC_DISPATCH(rms_norm_backward_columns)(p, begin, end);
    });
    parallel_ranges(p.x.rows(), p.weight.elements(), [&](std::int64_t begin, std::int64_t end) {
        HWY_DYNAMIC_DISPATCH(rms_norm_backward_rows)(p, begin, end);
    });
}

void gated_rms_norm_forward(const Context&, const GatedRmsNormParams& p) {
    parallel_ranges(p.x.elements() / p.weight.elements(), p.weight.elements(), [&](std::int64_t begin, std::int64_t end) {
        HWY_DYNAMIC_DISPATCH(gated_rms_norm_rows)(p, begin, end);
    });
}

std::size_t rms_norm_backward_workspace_bytes(std::int64_t) { return 0; }

}  // namespace dflash::cpu
#endif  // HWY_ONCE
