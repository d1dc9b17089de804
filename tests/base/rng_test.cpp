// SPDX-License-Identifier: MIT
#include "base/rng.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace dflash {
namespace {

// Known answers of Philox4x32-10 from the Random123 distribution's test vectors.
TEST(Philox, KnownAnswerForZeroCounterAndKey) {
    const std::array<std::uint32_t, 4> expected = {0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U};
    EXPECT_EQ(Philox(0, 0).block(0), expected);
}

TEST(Philox, KnownAnswerForAllOnes) {
    const std::uint64_t ones = ~std::uint64_t{0};
    const std::array<std::uint32_t, 4> expected = {0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU};
    EXPECT_EQ(Philox(ones, ones).block(ones), expected);
}

TEST(Philox, StreamsDiffer) {
    std::set<std::uint64_t> first_values;
    for (std::uint64_t stream = 0; stream < 1000; ++stream) first_values.insert(Philox(7, stream).next_u64());
    EXPECT_EQ(first_values.size(), 1000U);
}

TEST(Philox, NextBelowCoversItsRangeEvenly) {
    Philox rng(3, 1);
    std::array<int, 7> counts{};
    constexpr int kDraws = 70000;
    for (int i = 0; i < kDraws; ++i) ++counts[rng.next_below(7)];
    double chi_square = 0;
    for (const int count : counts) chi_square += (count - 10000.0) * (count - 10000.0) / 10000.0;
    EXPECT_LT(chi_square, 22.46);  // 0.999 quantile, 6 degrees of freedom
}

TEST(Philox, NormalHasUnitVariance) {
    Philox rng(5, 9);
    double sum = 0;
    double squares = 0;
    constexpr int kDraws = 200000;
    for (int i = 0; i < kDraws; ++i) {
        const double x = rng.next_normal();
        sum += x;
        squares += x * x;
    }
    EXPECT_LT(std::abs(sum / kDraws), 0.01);
    EXPECT_LT(std::abs(squares / kDraws - 1.0), 0.02);
}

}  // namespace
}  // namespace dflash
