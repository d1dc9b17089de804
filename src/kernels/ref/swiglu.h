// SPDX-License-Identifier: MIT
// y = silu(gate) up, its gradient, and the sigmoid output gate as plain loops: the oracle. Template on float or double.
#pragma once

#include <cmath>
#include <cstdint>

namespace dflash::ref {

template <typename T>
T sigmoid(T x) {
    return T{1} / (T{1} + std::exp(-x));
}

template <typename T>
void swiglu_forward(const T* gate, const T* up, T* y, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

// silu'(g) = s (1 + g (1 - s)), s = sigmoid(g)
template <typename T>
void swiglu_backward(const T* d_y, const T* gate, const T* up, T* d_gate, T* d_up, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        const T s = sigmoid(gate[i]);
        d_gate[i] = d_y[i] * up[i] * s * (T{1} + gate[i] * (T{1} - s));
        d_up[i] = d_y[i] * gate[i] * s;
    }
}

template <typename T>
void sigmoid_gate_forward(const T* gate, std::int64_t gate_row_stride, std::int64_t gate_head_stride, T* y, std::int64_t rows,
                          std::int64_t heads, std::int64_t head_dim) {
    for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t h = 0; h < heads; ++h) {
            for (std::int64_t i = 0; i < head_dim; ++i) {
                y[(r * heads + h) * head_dim + i] *= sigmoid(gate[r * gate_row_stride + h * gate_head_stride + i]);
            }
        }
    }
}

}  // namespace dflash::ref
