// SPDX-License-Identifier: MIT
#include "kernels/log_sum_exp.h"

#include <algorithm>
#include <cmath>

#include "kernels/backends.h"

namespace dflash::cpu {
namespace {

float log_sum_exp(const float* x, std::int64_t n) {
    const auto largest = static_cast<double>(*std::max_element(x, x + n));
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(x[i]) - largest);
    return static_cast<float>(largest + std::log(sum));
}

}  // namespace

void log_sum_exp_rows(const Context&, const Tensor& x, const Tensor& y) {
    const std::int64_t columns = x.row_elements();
#pragma omp parallel for schedule(static)
    for (std::int64_t row = 0; row < x.rows(); ++row) y.f32()[row] = log_sum_exp(x.f32() + row * columns, columns);
}

}  // namespace dflash::cpu
