// SPDX-License-Identifier: MIT
// The one comparison of the tests: relative RMS, written so that NaN, a wrong size or an empty input fails, with the worst index printed.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace dflash::testing {

// Bounds by kind of comparison; a test names one and never writes a literal.
struct Tolerance {
    double relative_rms;
    double relative_rms_bf16 = 0;  // where the op works in bf16
    constexpr Tolerance bf16() const { return {relative_rms_bf16}; }
};
inline constexpr Tolerance kOpF32{2e-6, 6e-3};        // one op against the double reference
inline constexpr Tolerance kGradientF32{1e-5, 6e-3};  // a backward op against the double reference
inline constexpr Tolerance kModelF32{1e-5, 5e-2};     // a whole tiny model
inline constexpr Tolerance kChunkF32{1e-6, 6e-3};     // the same computation cut differently
inline constexpr Tolerance kOpBf16 = kOpF32.bf16();   // one bf16 op
inline constexpr Tolerance kWideF32{1e-5};            // an f32 result of bf16 operands that the reference has too

// rms(got - ref) / rms(ref); the plain RMS of the difference where ref is zero throughout. NaN stays NaN.
template <typename A, typename B>
double relative_rms(std::span<const A> got, std::span<const B> ref) {
    if (got.size() != ref.size() || got.empty()) return std::numeric_limits<double>::quiet_NaN();
    double difference = 0;
    double magnitude = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double d = static_cast<double>(got[i]) - static_cast<double>(ref[i]);
        difference += d * d;
        magnitude += static_cast<double>(ref[i]) * static_cast<double>(ref[i]);
    }
    return std::sqrt(magnitude > 0 ? difference / magnitude : difference / static_cast<double>(got.size()));
}

template <typename A, typename B>
::testing::AssertionResult close(std::span<const A> got, std::span<const B> ref, Tolerance tolerance) {
    if (got.size() != ref.size()) {
        return ::testing::AssertionFailure() << "sizes differ: " << got.size() << " against " << ref.size();
    }
    if (got.empty()) return ::testing::AssertionFailure() << "nothing to compare";
    const double error = relative_rms(got, ref);
    if (error <= tolerance.relative_rms) return ::testing::AssertionSuccess();
    std::size_t worst = 0;
    double worst_difference = -1;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double d = std::abs(static_cast<double>(got[i]) - static_cast<double>(ref[i]));
        if (!(d <= worst_difference)) {
            worst = i;
            worst_difference = d;
            if (std::isnan(d)) break;
        }
    }
    return ::testing::AssertionFailure() << "relative RMS " << error << " over " << tolerance.relative_rms << "; worst at [" << worst
                                         << "]: " << got[worst] << " against " << ref[worst];
}

// For what is computed in bf16: its error against the exact values is at most twice that of `plain`, the same program in plain bf16 arithmetic with
// wide sums, and one rounding of the result.
inline ::testing::AssertionResult as_good_as_bf16(std::span<const double> got, std::span<const double> exact,
                                                  std::span<const double> plain) {
    constexpr double kOneRounding = 1.0 / 256;
    return close(got, exact, Tolerance{2 * relative_rms(plain, exact) + kOneRounding});
}

inline std::span<const float> f32_span(const Tensor& tensor) { return {tensor.f32(), static_cast<std::size_t>(tensor.elements())}; }
inline ::testing::AssertionResult close(const Tensor& got, const Tensor& ref, Tolerance tolerance) {
    return close(f32_span(got), f32_span(ref), tolerance);
}
inline ::testing::AssertionResult close(const Tensor& got, const std::vector<double>& ref, Tolerance tolerance) {
    return close(f32_span(got), std::span<const double>(ref), tolerance);
}

}  // namespace dflash::testing
