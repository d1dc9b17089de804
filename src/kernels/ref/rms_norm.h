// SPDX-License-Identifier: MIT
// Root-mean-square norm, its gradient and the gated kind as plain loops: the oracle. Template on float or double.
#pragma once

#include <cmath>
#include <cstdint>

namespace dflash::ref {

template <typename T>
T rms_rstd(const T* x, std::int64_t columns, T eps) {
    T sum = 0;
    for (std::int64_t i = 0; i < columns; ++i) sum += x[i] * x[i];
    return T{1} / std::sqrt(sum / static_cast<T>(columns) + eps);
}

// y = (offset + w) x rstd; rstd may be null.
template <typename T>
void rms_norm_forward(const T* x, const T* weight, T* y, T* rstd, std::int64_t rows, std::int64_t columns, T eps, T offset) {
    for (std::int64_t r = 0; r < rows; ++r, x += columns, y += columns) {
        const T scale = rms_rstd(x, columns, eps);
        if (rstd != nullptr) rstd[r] = scale;
        for (std::int64_t i = 0; i < columns; ++i) y[i] = (offset + weight[i]) * x[i] * scale;
    }
}

// d_x += rstd (g - n mean(g n)) with n = x rstd, g = d_y (offset + w);   d_weight += sum over rows of d_y n
template <typename T>
void rms_norm_backward(const T* d_y, const T* x, const T* weight, T* d_x, T* d_weight, std::int64_t rows, std::int64_t columns, T eps,
                       T offset) {
    for (std::int64_t r = 0; r < rows; ++r, d_y += columns, x += columns, d_x += columns) {
        const T rstd = rms_rstd(x, columns, eps);
        T mean = 0;
        for (std::int64_t i = 0; i < columns; ++i) mean += d_y[i] * (offset + weight[i]) * x[i] * rstd / static_cast<T>(columns);
        for (std::int64_t i = 0; i < columns; ++i) {
            const T n = x[i] * rstd;
            d_x[i] += rstd * (d_y[i] * (offset + weight[i]) - n * mean);
            d_weight[i] += d_y[i] * n;
        }
    }
}

// y = w x rstd gate(z)
template <typename T>
void gated_rms_norm_forward(const T* x, const T* z, const T* weight, T* y, std::int64_t rows, std::int64_t columns, T eps,
                            bool sigmoid_gate) {
    for (std::int64_t r = 0; r < rows; ++r, x += columns, z += columns, y += columns) {
        const T rstd = rms_rstd(x, columns, eps);
        for (std::int64_t i = 0; i < columns; ++i) {
            const T sigmoid = T{1} / (T{1} + std::exp(-z[i]));
            y[i] = weight[i] * x[i] * rstd * (sigmoid_gate ? sigmoid : z[i] * sigmoid);
        }
    }
}

}  // namespace dflash::ref
