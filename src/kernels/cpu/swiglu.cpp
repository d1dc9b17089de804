// SPDX-License-Identifier: MIT
#include "kernels/backends.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/swiglu.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dflash::cpu::HWY_NAMESPACE {

void swiglu_range(const SwigluForwardParams& p, std::int64_t begin, std::int64_t end) {
    const float* gate = p.gate.f32() + begin;
    const float* up = p.up.f32() + begin;
    float* y = p.y.f32() + begin;
    for_each_vector(end - begin, [&](auto at) {
        const F32Vector g = at.load(gate);
        at.store(hn::Mul(hn::Mul(g, sigmoid(g)), at.load(up)), y);
    });
}

void swiglu_backward_range(const SwigluBackwardParams& p, std::int64_t begin, std::int64_t end) {
    const float* d_y = p.d_y.f32() + begin;
    const float* gate = p.gate.f32() + begin;
    const float* up = p.up.f32() + begin;
    float* d_gate = p.d_gate.f32() + begin;
    float* d_up = p.d_up.f32() + begin;
    float* y = p.y.defined() ? p.y.f32() + begin : nullptr;
    const F32Vector one = hn::Set(F32(), 1.0F);
    for_each_vector(end - begin, [&](auto at) {
        const F32Vector g = at.load(gate), u = at.load(up), d = at.load(d_y);
        const F32Vector s = sigmoid(g);
        const F32Vector silu = hn::Mul(g, s);
        at.store(hn::Mul(hn::Mul(d, u), hn::Mul(s, hn::MulAdd(g, hn::Sub(one, s), one))), d_gate);
        at.store(hn::Mul(d, silu), d_up);
        if (y != nullptr) at.store(hn::Mul(silu, u), y);
    });
}

void sigmoid_gate_rows(const SigmoidGateParams& p, std::int64_t begin, std::int64_t end) {
    const std::int64_t heads = p.y.shape[1];
    const std::int64_t head_dim = p.y.shape[2];
    for (std::int64_t r = begin; r < end; ++r) {
        for (std::int64_t h = 0; h < heads; ++h) {
            const float* gate = p.gate.f32() + r * p.gate_row_stride + h * p.gate_head_stride;
            float* y = p.y.f32() + (r * heads + h) * head_dim;
            for_each_vector(head_dim, [&](auto at) { at.store(hn::Mul(at.load(y), sigmoid(at.load(gate))), y); });
        }
    }
}

}  // namespace dflash::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::cpu {

HWY_EXPORT(swiglu_range);
HWY_EXPORT(swiglu_backward_range);
HWY_EXPORT(sigmoid_gate_rows);

void swiglu_forward(const Context&, const SwigluForwardParams& p) {
    parallel_ranges(p.gate.elements(), 1, [&](std::int64_t begin, std::int64_t end) { HWY_DYNAMIC_DISPATCH(swiglu_range)(p, begin, end); });
}

void swiglu_backward(const Context&, const SwigluBackwardParams& p) {
    parallel_ranges(p.gate.elements(), 1, [&](std::int64_t begin, std::int64_t end) {
        HWY_DYNAMIC_DISPATCH(swiglu_backward_range)(p, begin, end);
    });
}

void sigmoid_gate_forward(const Context&, const SigmoidGateParams& p) {
    parallel_ranges(p.y.rows(), p.y.row_elements(), [&](std::int64_t begin, std::int64_t end) {
        HWY_DYNAMIC_DISPATCH(sigmoid_gate_rows)(p, begin, end);
    });
}

}  // namespace dflash::cpu
#endif  // HWY_ONCE
