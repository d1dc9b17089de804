// SPDX-License-Identifier: MIT
// Central differences in double: is `gradient` the derivative of `loss` with respect to every element of `x`?
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "support/close.h"

namespace dflash::testing {

// Central differences with this step are good to about 1e-9 of the function's scale in double.
inline constexpr double kDifferenceStep = 1e-5;
inline constexpr Tolerance kDifferences{1e-7};

inline std::vector<double> central_differences(std::vector<double>& x, const std::function<double()>& loss) {
    std::vector<double> gradient(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double kept = x[i];
        x[i] = kept + kDifferenceStep;
        const double above = loss();
        x[i] = kept - kDifferenceStep;
        const double below = loss();
        x[i] = kept;
        gradient[i] = (above - below) / (2 * kDifferenceStep);
    }
    return gradient;
}

// `loss` reads x through its reference.
inline ::testing::AssertionResult gradient_matches(const std::vector<double>& gradient, std::vector<double>& x,
                                                   const std::function<double()>& loss) {
    const std::vector<double> differences = central_differences(x, loss);
    return close(std::span<const double>(gradient), std::span<const double>(differences), kDifferences);
}

// A scalar loss of an output: its product with fixed weights (the incoming gradient).
inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

}  // namespace dflash::testing
