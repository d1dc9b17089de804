// SPDX-License-Identifier: MIT
// The gated delta rule and its convolution, token by token: the oracle, and the version to read first. Plain pointers, one document a call.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace dflash::ref {

template <typename T>
T sigmoid(T x) {
    return T(1) / (T(1) + std::exp(-x));
}

// y (rows, channels) = silu of the causal depthwise convolution of x; weight (channels, taps), newest tap last. history: the taps - 1
// rows before x, or null for zeros.
template <typename T>
void causal_conv_silu(std::int64_t rows, std::int64_t channels, std::int64_t taps, const T* x, const T* weight, const T* history, T* y) {
    for (std::int64_t t = 0; t < rows; ++t) {
        for (std::int64_t c = 0; c < channels; ++c) {
            T sum = 0;
            for (std::int64_t j = 0; j < taps; ++j) {
                const std::int64_t source = t - (taps - 1) + j;
                if (source >= 0) {
                    sum += weight[c * taps + j] * x[source * channels + c];
                } else if (history != nullptr) {
                    sum += weight[c * taps + j] * history[(source + taps - 1) * channels + c];
                }
            }
            y[t * channels + c] = sum * sigmoid(sum);
        }
    }
}

struct DeltaShape {
    std::int64_t rows, key_heads, value_heads, key_dim, value_dim;
};

// x / sqrt(sum x^2 + 1e-6) * scale
template <typename T>
std::vector<T> l2_normalised(const T* x, std::int64_t n, T scale) {
    T sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
    const T factor = scale / std::sqrt(sum + T(1e-6));
    std::vector<T> y(x, x + n);
    for (T& value : y) value *= factor;
    return y;
}

// qkv (rows, 2 nk dk + nv dv), b and a (rows, nv), a_log and dt_bias (nv); state (nv, dk, dv) read and updated; out (rows, nv, dv).
template <typename T>
void delta_rule(const DeltaShape& s, const T* qkv, const T* b, const T* a, const T* a_log, const T* dt_bias, T* state, T* out) {
    const std::int64_t keys = s.key_heads * s.key_dim;
    const std::int64_t channels = 2 * keys + s.value_heads * s.value_dim;
    for (std::int64_t t = 0; t < s.rows; ++t) {
        for (std::int64_t h = 0; h < s.value_heads; ++h) {
            const std::int64_t key_head = h / (s.value_heads / s.key_heads);
            const T* row = qkv + t * channels;
            const auto q = l2_normalised(row + key_head * s.key_dim, s.key_dim, T(1) / std::sqrt(static_cast<T>(s.key_dim)));
            const auto k = l2_normalised(row + keys + key_head * s.key_dim, s.key_dim, T(1));
            const T* v = row + 2 * keys + h * s.value_dim;
            const T beta = sigmoid(b[t * s.value_heads + h]);
            const T x = a[t * s.value_heads + h] + dt_bias[h];
            const T decay = std::exp(-std::exp(a_log[h]) * (x > T(30) ? x : std::log1p(std::exp(x))));
            T* memory = state + h * s.key_dim * s.value_dim;
            for (std::int64_t j = 0; j < s.value_dim; ++j) {
                T recalled = 0;
                for (std::int64_t i = 0; i < s.key_dim; ++i) {
                    memory[i * s.value_dim + j] *= decay;
                    recalled += memory[i * s.value_dim + j] * k[static_cast<std::size_t>(i)];
                }
                const T correction = beta * (v[j] - recalled);
                T read = 0;
                for (std::int64_t i = 0; i < s.key_dim; ++i) {
                    memory[i * s.value_dim + j] += k[static_cast<std::size_t>(i)] * correction;
                    read += memory[i * s.value_dim + j] * q[static_cast<std::size_t>(i)];
                }
                out[(t * s.value_heads + h) * s.value_dim + j] = read;
            }
        }
    }
}

}  // namespace dflash::ref
