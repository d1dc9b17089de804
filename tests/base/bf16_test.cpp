// SPDX-License-Identifier: MIT
#include "base/bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace dflash {
namespace {

TEST(Bf16, EveryValueSurvivesTheRoundTrip) {
    for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
        const float value = bf16_to_float(static_cast<std::uint16_t>(bits));
        if (std::isnan(value)) {
            EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value))));
        } else {
            EXPECT_EQ(float_to_bf16(value), bits);
        }
    }
}

TEST(Bf16, RoundsToNearestEven) {
    EXPECT_EQ(float_to_bf16(1.0F + 0x1p-8F), float_to_bf16(1.0F));                // tie, down to even
    EXPECT_EQ(float_to_bf16(1.0F + 3 * 0x1p-8F), float_to_bf16(1.0F + 0x1p-6F));  // tie, up to even
    EXPECT_EQ(bf16_to_float(float_to_bf16(std::numeric_limits<float>::max())), std::numeric_limits<float>::infinity());
}

TEST(F16, KnownValues) {
    EXPECT_EQ(f16_to_float(0x3c00), 1.0F);
    EXPECT_EQ(f16_to_float(0xc000), -2.0F);
    EXPECT_EQ(f16_to_float(0x0001), 0x1p-24F);
    EXPECT_EQ(f16_to_float(0x7bff), 65504.0F);
    EXPECT_TRUE(std::isinf(f16_to_float(0x7c00)));
    EXPECT_TRUE(std::isnan(f16_to_float(0x7c01)));
    EXPECT_TRUE(std::signbit(f16_to_float(0x8000)));
}

}  // namespace
}  // namespace dflash
