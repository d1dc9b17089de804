// SPDX-License-Identifier: MIT
// Muon on one matrix as plain loops: the oracle. Template on float or double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace dflash::ref {

template <typename T>
std::vector<T> matrix_product(const std::vector<T>& a, const std::vector<T>& b, std::int64_t m, std::int64_t k, std::int64_t n) {
    std::vector<T> c(static_cast<std::size_t>(m * n), T{0});
    for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t l = 0; l < k; ++l)
            for (std::int64_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + l] * b[l * n + j];
    return c;
}

template <typename T>
struct MuonSettings {
    T lr, decay, weight_decay, grad_scale;
};

template <typename T>
void muon_step(std::vector<T>& weight, const std::vector<T>& gradient, std::vector<T>& momentum, std::int64_t rows, std::int64_t columns,
               const MuonSettings<T>& s) {
    std::vector<T> x(weight.size());
    T squares = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const T g = gradient[i] * s.grad_scale;
        momentum[i] = s.decay * momentum[i] + g;
        x[i] = g + s.decay * momentum[i];
        squares += x[i] * x[i];
    }
    if (squares > 0) {
        for (T& value : x) value /= std::sqrt(squares);
        for (int round = 0; round < 5; ++round) {
            std::vector<T> transposed(x.size());
            for (std::int64_t i = 0; i < rows; ++i)
                for (std::int64_t j = 0; j < columns; ++j) transposed[j * rows + i] = x[i * columns + j];
            const std::vector<T> gram = matrix_product(x, transposed, rows, columns, rows);
            const std::vector<T> first = matrix_product(gram, x, rows, rows, columns);
            const std::vector<T> second = matrix_product(gram, first, rows, rows, columns);
            for (std::size_t i = 0; i < x.size(); ++i) x[i] = T(3.4445) * x[i] + T(-4.7750) * first[i] + T(2.0315) * second[i];
        }
    }
    const T size = T(0.2) * std::sqrt(static_cast<T>(std::max(rows, columns)));
    for (std::size_t i = 0; i < x.size(); ++i) weight[i] = (T{1} - s.lr * s.weight_decay) * weight[i] - s.lr * size * x[i];
}

}  // namespace dflash::ref
