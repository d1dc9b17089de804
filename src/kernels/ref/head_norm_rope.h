// SPDX-License-Identifier: MIT
// Per-head RMS norm and rotary embedding, and the gradient, as plain loops: the oracle. Template on float or double.
// `angle_cos` and `angle_sin` hold rotary/2 values for each position. Contiguous x only; `weight` may be null (rotation alone).
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/ref/rms_norm.h"

namespace dflash::ref {

struct HeadNormRopeShape {
    std::int64_t rows = 0, heads = 0, head_dim = 0, rotary_half = 0;
};

template <typename T>
void head_norm_rope_forward(const HeadNormRopeShape& s, const T* x, const T* weight, T eps, T offset, const std::int32_t* positions,
                            const T* angle_cos, const T* angle_sin, T* y) {
    std::vector<T> n(static_cast<std::size_t>(s.head_dim));
    for (std::int64_t r = 0; r < s.rows; ++r) {
        const T* c = angle_cos + positions[r] * s.rotary_half;
        const T* sn = angle_sin + positions[r] * s.rotary_half;
        for (std::int64_t h = 0; h < s.heads; ++h, x += s.head_dim, y += s.head_dim) {
            const T rstd = weight == nullptr ? T{1} : rms_rstd(x, s.head_dim, eps);
            for (std::int64_t i = 0; i < s.head_dim; ++i) {
                n[static_cast<std::size_t>(i)] = weight == nullptr ? x[i] : (offset + weight[i]) * x[i] * rstd;
            }
            for (std::int64_t i = 0; i < s.head_dim; ++i) y[i] = n[static_cast<std::size_t>(i)];
            for (std::int64_t i = 0; i < s.rotary_half; ++i) {
                const T a = n[static_cast<std::size_t>(i)];
                const T b = n[static_cast<std::size_t>(i + s.rotary_half)];
                y[i] = a * c[i] - b * sn[i];
                y[i + s.rotary_half] = b * c[i] + a * sn[i];
            }
        }
    }
}

// d_x =, d_weight +=.  The rotation's transpose, then the norm's gradient.
template <typename T>
void head_norm_rope_backward(const HeadNormRopeShape& s, const T* d_y, const T* x, const T* weight, T eps, T offset,
                             const std::int32_t* positions, const T* angle_cos, const T* angle_sin, T* d_x, T* d_weight) {
    std::vector<T> d_n(static_cast<std::size_t>(s.head_dim));
    for (std::int64_t r = 0; r < s.rows; ++r) {
        const T* c = angle_cos + positions[r] * s.rotary_half;
        const T* sn = angle_sin + positions[r] * s.rotary_half;
        for (std::int64_t h = 0; h < s.heads; ++h, x += s.head_dim, d_y += s.head_dim, d_x += s.head_dim) {
            for (std::int64_t i = 0; i < s.head_dim; ++i) d_n[static_cast<std::size_t>(i)] = d_y[i];
            for (std::int64_t i = 0; i < s.rotary_half; ++i) {
                d_n[static_cast<std::size_t>(i)] = d_y[i] * c[i] + d_y[i + s.rotary_half] * sn[i];
                d_n[static_cast<std::size_t>(i + s.rotary_half)] = d_y[i + s.rotary_half] * c[i] - d_y[i] * sn[i];
            }
            for (std::int64_t i = 0; i < s.head_dim; ++i) d_x[i] = 0;
            rms_norm_backward(d_n.data(), x, weight, d_x, d_weight, 1, s.head_dim, eps, offset);
        }
    }
}

}  // namespace dflash::ref
