// SPDX-License-Identifier: MIT
// AdamW on one tensor as a plain loop: the oracle. Template on float or double.
#pragma once

#include <cmath>
#include <cstdint>

namespace dflash::ref {

template <typename T>
struct AdamWSettings {
    T lr, beta1, beta2, eps, weight_decay, grad_scale;
    std::int64_t step;
};

template <typename T>
void adamw_step(T* weight, const T* gradient, T* m, T* v, std::int64_t n, const AdamWSettings<T>& s) {
    const T m_correction = T{1} - std::pow(s.beta1, static_cast<T>(s.step));
    const T v_correction = T{1} - std::pow(s.beta2, static_cast<T>(s.step));
    for (std::int64_t i = 0; i < n; ++i) {
        const T g = gradient[i] * s.grad_scale;
        m[i] = s.beta1 * m[i] + (T{1} - s.beta1) * g;
        v[i] = s.beta2 * v[i] + (T{1} - s.beta2) * g * g;
        weight[i] -= s.lr * (m[i] / m_correction / (std::sqrt(v[i] / v_correction) + s.eps) + s.weight_decay * weight[i]);
    }
}

}  // namespace dflash::ref
