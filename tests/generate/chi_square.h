// SPDX-License-Identifier: MIT
// Chi-square test of counts against exact probabilities, by the Wilson-Hilferty approximation.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace dflash::testing {

// Standard deviations above its mean that the statistic may lie: one fair test in a million fails (and seeds are fixed).
inline constexpr double kChiSquareDeviations = 4.75;

inline ::testing::AssertionResult follows(const std::vector<std::int64_t>& counts, const std::vector<double>& probabilities) {
    if (counts.size() != probabilities.size()) return ::testing::AssertionFailure() << "sizes differ";
    std::int64_t total = 0;
    for (const std::int64_t count : counts) total += count;
    double statistic = 0;
    int cells = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
        const double expected = probabilities[i] * static_cast<double>(total);
        if (probabilities[i] == 0) {
            if (counts[i] != 0) return ::testing::AssertionFailure() << "impossible outcome " << i << " came " << counts[i] << " times";
            continue;
        }
        if (!(expected >= 5)) return ::testing::AssertionFailure() << "too few samples for outcome " << i << ": " << expected;
        const double difference = static_cast<double>(counts[i]) - expected;
        statistic += difference * difference / expected;
        ++cells;
    }
    if (cells < 2) return ::testing::AssertionFailure() << "nothing to test";
    const double degrees = cells - 1;
    const double spread = 2.0 / (9.0 * degrees);
    const double deviations = (std::cbrt(statistic / degrees) - (1.0 - spread)) / std::sqrt(spread);
    if (deviations <= kChiSquareDeviations) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "chi-square " << statistic << " with " << degrees << " degrees of freedom: " << deviations
                                         << " deviations above what chance gives";
}

}  // namespace dflash::testing
