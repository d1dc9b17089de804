// SPDX-License-Identifier: MIT
// A row of logits fits the second-level cache, so memory is read once and written once: the three passes of a row (largest value,
// exponentials left in place with their sum, gradient) run from the cache.
#include <cmath>
#include <limits>

#include "kernels/backends.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dflash::cpu::HWY_NAMESPACE {

// Leaves e^(z - max) in `out` and returns its sum. NaN anywhere gives NaN.
float exp_row(const float* z, float max, float* out, std::int64_t n) {
    const F32Vector shift = hn::Set(F32(), max);
    F32Vector sum = hn::Zero(F32());
    for_each_vector(n, [&](auto at) {
        const F32Vector e = exp(hn::Sub(at.load(z), shift));
        at.store(e, out);
        sum = hn::Add(sum, at.zero_beyond(e));
    });
    return sum_of_lanes(sum);
}

float exp_row_sum(const float* z, float max, std::int64_t n) {
    const F32Vector shift = hn::Set(F32(), max);
    F32Vector sum = hn::Zero(F32());
    for_each_vector(n, [&](auto at) { sum = hn::Add(sum, at.zero_beyond(exp(hn::Sub(at.load(z), shift)))); });
    return sum_of_lanes(sum);
}

struct KlSums {
    float student;     // sum e^(z - max)
    float teacher;     // sum e^(t - max_t)
    float difference;  // sum e^(t - max_t) ((t - max_t) - (z - max))
};

// Leaves the teacher's exponentials in `teacher`, and the student's in z if asked.
KlSums kl_row(float* z, float max, float* teacher, float teacher_max, std::int64_t n, bool keep) {
    const F32Vector shift = hn::Set(F32(), max);
    const F32Vector teacher_shift = hn::Set(F32(), teacher_max);
    F32Vector student_sum = hn::Zero(F32()), teacher_sum = student_sum, difference = student_sum;
    for_each_vector(n, [&](auto at) {
        const F32Vector a = hn::Sub(at.load(z), shift);
        const F32Vector b = hn::Sub(at.load(teacher), teacher_shift);
        const F32Vector student_e = at.zero_beyond(exp(a));
        const F32Vector teacher_e = at.zero_beyond(exp(b));
        student_sum = hn::Add(student_sum, student_e);
        teacher_sum = hn::Add(teacher_sum, teacher_e);
        difference = hn::MulAdd(teacher_e, hn::Sub(b, a), difference);
        at.store(teacher_e, teacher);
        if (keep) at.store(student_e, z);
    });
    return {sum_of_lanes(student_sum), sum_of_lanes(teacher_sum), sum_of_lanes(difference)};
}

void cross_entropy_rows(const CrossEntropyParams& p, std::int64_t begin, std::int64_t end) {
    const std::int64_t n = p.logits.row_elements();
    for (std::int64_t r = begin; r < end; ++r) {
        float* z = p.logits.f32() + r * n;
        const std::int64_t label = p.labels.i32()[r];
        const float label_logit = z[label];
        const float max_before = range_max(z, label);
        const float max = std::max(std::max(max_before, label_logit), range_max(z + label + 1, n - label - 1));
        float sum = 0;
        if (!p.teacher_logits.defined()) {
            sum = p.want_gradient ? exp_row(z, max, z, n) : exp_row_sum(z, max, n);
            p.loss.f32()[r] = std::log(sum) + (max - label_logit);
            if (p.want_gradient) {
                const F32Vector scale = hn::Set(F32(), 1.0F / sum);
                for_each_vector(n, [&](auto at) { at.store(hn::Mul(at.load(z), scale), z); });
                z[label] -= 1.0F;
            }
        } else {
            float* teacher = p.teacher_logits.f32() + r * n;
            const KlSums sums = kl_row(z, max, teacher, range_max(teacher, n), n, p.want_gradient);
            sum = sums.student;
            p.loss.f32()[r] = sums.difference / sums.teacher + (std::log(sum) - std::log(sums.teacher));
            if (p.want_gradient) {
                const F32Vector scale = hn::Set(F32(), 1.0F / sum);
                const F32Vector teacher_scale = hn::Set(F32(), 1.0F / sums.teacher);
                for_each_vector(
                    n, [&](auto at) { at.store(hn::Sub(hn::Mul(at.load(z), scale), hn::Mul(at.load(teacher), teacher_scale)), z); });
            }
        }
        p.label_prob.f32()[r] = std::exp(label_logit - max) / sum;
        p.correct.i32()[r] = max_before < label_logit && max == label_logit && !std::isnan(sum) ? 1 : 0;
    }
}

}  // namespace dflash::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::cpu {

HWY_EXPORT(cross_entropy_rows);

void cross_entropy_forward_backward(const Context&, const CrossEntropyParams& p) {
    parallel_ranges(p.logits.rows(), p.logits.row_elements(), [&](std::int64_t begin, std::int64_t end) {
        HWY_DYNAMIC_DISPATCH(cross_entropy_rows)(p, begin, end);
    });
}

}  // namespace dflash::cpu
#endif  // HWY_ONCE
