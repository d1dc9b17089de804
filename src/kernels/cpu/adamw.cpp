// SPDX-License-Identifier: MIT
// Bound by memory (28 bytes an element): one pass, all tensors taken as one long range that the threads share evenly.
#include <cmath>
#include <limits>

#include "kernels/backends.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/sum_of_squares.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/adamw.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dflash::cpu::HWY_NAMESPACE {

void adamw_range(const AdamWParams& p, const AdamWTensor& t, double grad_scale, std::int64_t begin, std::int64_t end) {
    float* weight = t.weight.f32() + begin;
    const float* gradient = t.gradient.f32() + begin;
    float* m = t.m.f32() + begin;
    float* v = t.v.f32() + begin;
    const auto set = [](double value) { return hn::Set(F32(), static_cast<float>(value)); };
    const double beta1 = p.beta1, beta2 = p.beta2;
    const F32Vector scale = set(grad_scale);
    const F32Vector b1 = set(beta1), rest1 = set(1.0 - beta1);
    const F32Vector b2 = set(beta2), rest2 = set(1.0 - beta2);
    // lr m / c1 / (sqrt(v / c2) + eps), c1 and c2 the bias corrections
    const F32Vector rate = set(p.lr / (1.0 - std::pow(beta1, static_cast<double>(p.step))));
    const F32Vector v_scale = set(1.0 / (1.0 - std::pow(beta2, static_cast<double>(p.step))));
    const F32Vector eps = set(p.eps);
    const F32Vector decay = set(static_cast<double>(p.lr) * t.weight_decay);
    for_each_vector(end - begin, [&](auto at) {
        const F32Vector g = hn::Mul(at.load(gradient), scale);
        const F32Vector new_m = hn::MulAdd(b1, at.load(m), hn::Mul(rest1, g));
        const F32Vector new_v = hn::MulAdd(b2, at.load(v), hn::Mul(rest2, hn::Mul(g, g)));
        at.store(new_m, m);
        at.store(new_v, v);
        const F32Vector update = hn::Div(hn::Mul(rate, new_m), hn::Add(hn::Sqrt(hn::Mul(new_v, v_scale)), eps));
        const F32Vector w = at.load(weight);
        at.store(hn::Sub(w, hn::MulAdd(decay, w, update)), weight);
    });
}

double sum_of_squares_range(const float* x, std::int64_t n) {
    const hn::CappedTag<double, 8> d64;
    const hn::Rebind<float, decltype(d64)> d32;
    const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d64));
    auto even = hn::Zero(d64);
    auto odd = hn::Zero(d64);
    std::int64_t i = 0;
    for (; i + 2 * lanes <= n; i += 2 * lanes) {
        const auto a = hn::PromoteTo(d64, hn::LoadU(d32, x + i));
        const auto b = hn::PromoteTo(d64, hn::LoadU(d32, x + i + lanes));
        even = hn::MulAdd(a, a, even);
        odd = hn::MulAdd(b, b, odd);
    }
    double sum = hn::GetLane(hn::SumOfLanes(d64, hn::Add(even, odd)));
    for (; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    return sum;
}

}  // namespace dflash::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::cpu {

HWY_EXPORT(adamw_range);
HWY_EXPORT(sum_of_squares_range);

namespace {

// Calls visit(i, begin, end) for the parts of tensors that lie in [begin, end) of the concatenation. sizes(i) is tensor i's length.
template <typename Sizes, typename Visit>
void for_each_part(std::size_t count, const Sizes& sizes, std::int64_t begin, std::int64_t end, const Visit& visit) {
    std::int64_t start = 0;
    for (std::size_t i = 0; i < count && start < end; ++i) {
        const std::int64_t from = std::max(begin - start, std::int64_t{0});
        const std::int64_t to = std::min(end - start, sizes(i));
        if (from < to) visit(i, from, to);
        start += sizes(i);
    }
}

template <typename Sizes>
std::int64_t total(std::size_t count, const Sizes& sizes) {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += sizes(i);
    return sum;
}

}  // namespace

void adamw_step(const Context&, const AdamWParams& p) {
    const std::vector<AdamWTensor>& tensors = *p.tensors;
    const double grad_scale = *p.grad_scale.f64();
    if (!std::isfinite(grad_scale)) return;
    const auto sizes = [&](std::size_t i) { return tensors[i].weight.elements(); };
    parallel_ranges(total(tensors.size(), sizes), 1, [&](std::int64_t begin, std::int64_t end) {
        for_each_part(tensors.size(), sizes, begin, end, [&](std::size_t i, std::int64_t from, std::int64_t to) {
            HWY_DYNAMIC_DISPATCH(adamw_range)(p, tensors[i], grad_scale, from, to);
        });
    });
}

double sum_of_squares(const std::vector<Tensor>& tensors) {
    const auto sizes = [&](std::size_t i) { return tensors[i].elements(); };
    // Fixed parts, summed in order: the result does not depend on the thread count.
    constexpr std::int64_t kParts = 256;
    const std::int64_t elements = total(tensors.size(), sizes);
    double partial[kParts] = {};
    parallel_ranges(kParts, elements / kParts, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t part = begin; part < end; ++part) {
            for_each_part(tensors.size(), sizes, elements * part / kParts, elements * (part + 1) / kParts,
                          [&](std::size_t i, std::int64_t from, std::int64_t to) {
                              partial[part] += HWY_DYNAMIC_DISPATCH(sum_of_squares_range)(tensors[i].f32() + from, to - from);
                          });
        }
    });
    double sum = 0;
    for (const double part : partial) sum += part;
    return sum;
}

void gradient_scale(const Context&, const GradientScaleParams& p) {
    const double loss_sum = p.sums.f64()[kLossSum];
    const double weight_sum = p.sums.f64()[kWeightSum];
    double norm = 0;
    double scale = 0;
    if (weight_sum != 0) {
        norm = std::sqrt(sum_of_squares(*p.gradients)) / weight_sum;
        scale = 1.0 / weight_sum;
        if (p.max_norm > 0 && norm > p.max_norm) scale *= p.max_norm / norm;
    }
    if (std::isnan(*p.scale.f64()) || !std::isfinite(loss_sum) || !std::isfinite(norm)) scale = std::numeric_limits<double>::quiet_NaN();
    *p.norm.f64() = norm;
    *p.scale.f64() = scale;
}

std::size_t gradient_scale_workspace_bytes() { return 0; }

}  // namespace dflash::cpu
#endif  // HWY_ONCE
