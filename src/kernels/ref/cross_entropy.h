// SPDX-License-Identifier: MIT
// One row of the loss as plain loops: the oracle. Template on float or double. `teacher` null: cross entropy with the label; else
// KL(softmax(teacher) || softmax(logits)). Returns the loss; writes the gradient of the logits and the label's probability.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace dflash::ref {

template <typename T>
T log_sum_exp(const T* z, std::int64_t n) {
    const T max = *std::max_element(z, z + n);
    T sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += std::exp(z[i] - max);
    return max + std::log(sum);
}

template <typename T>
T cross_entropy_row(const T* z, const T* teacher, std::int32_t label, std::int64_t n, T* gradient, T* label_prob) {
    const T lse = log_sum_exp(z, n);
    const T teacher_lse = teacher == nullptr ? T{0} : log_sum_exp(teacher, n);
    T loss = teacher == nullptr ? lse - z[label] : T{0};
    for (std::int64_t i = 0; i < n; ++i) {
        T target = i == label ? T{1} : T{0};
        if (teacher != nullptr) {
            target = std::exp(teacher[i] - teacher_lse);
            loss += target * ((teacher[i] - teacher_lse) - (z[i] - lse));
        }
        gradient[i] = std::exp(z[i] - lse) - target;
    }
    *label_prob = std::exp(z[label] - lse);
    return loss;
}

}  // namespace dflash::ref
