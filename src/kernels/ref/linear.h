// SPDX-License-Identifier: MIT
// y = x W^T and its two gradients as plain loops: the oracle of the linear layer. Template on float or double.
#pragma once

#include <cstdint>

namespace dflash::ref {

template <typename T>
void linear_forward(const T* x, const T* weight, T* y, std::int64_t rows, std::int64_t in, std::int64_t out, bool accumulate) {
    for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t o = 0; o < out; ++o) {
            T sum = accumulate ? y[r * out + o] : T{0};
            for (std::int64_t i = 0; i < in; ++i) sum += x[r * in + i] * weight[o * in + i];
            y[r * out + o] = sum;
        }
    }
}

template <typename T>
void linear_backward_input(const T* d_y, const T* weight, T* d_x, std::int64_t rows, std::int64_t in, std::int64_t out, bool accumulate) {
    for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t i = 0; i < in; ++i) {
            T sum = accumulate ? d_x[r * in + i] : T{0};
            for (std::int64_t o = 0; o < out; ++o) sum += d_y[r * out + o] * weight[o * in + i];
            d_x[r * in + i] = sum;
        }
    }
}

template <typename T>
void linear_backward_weight(const T* d_y, const T* x, T* d_weight, std::int64_t rows, std::int64_t in, std::int64_t out, bool accumulate) {
    for (std::int64_t o = 0; o < out; ++o) {
        for (std::int64_t i = 0; i < in; ++i) {
            T sum = accumulate ? d_weight[o * in + i] : T{0};
            for (std::int64_t r = 0; r < rows; ++r) sum += d_y[r * out + o] * x[r * in + i];
            d_weight[o * in + i] = sum;
        }
    }
}

}  // namespace dflash::ref
