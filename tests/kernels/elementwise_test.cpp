// SPDX-License-Identifier: MIT
// Elementwise ops and the moving of rows.
#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/bf16.h"
#include "kernels/embedding.h"
#include "support/close.h"
#include "support/data.h"

namespace dflash {
namespace {

using testing::i32_tensor;
using testing::poisoned_f32;
using testing::random_f32;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Elementwise, FillZeroReplacesNanForAnySize) {
    const Context context;
    for (const std::int64_t n : {0, 1, 17, 20001}) {
        const HostBuffer y = poisoned_f32({n});
        fill_zero(context, y);
        for (const float value : testing::f32_span(y)) ASSERT_EQ(value, 0.0F);
    }
}

TEST(Elementwise, AddAddsEveryElementOnce) {
    const Context context;
    for (const std::int64_t n : {1, 17, 20001}) {
        const HostBuffer x = random_f32({n}, 1), y = random_f32({n}, 2);
        std::vector<float> expected(static_cast<std::size_t>(n));
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = y.tensor().f32()[i] + x.tensor().f32()[i];
        add(context, x, y);
        for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(y.tensor().f32()[i], expected[i]) << i;
    }
}

TEST(Elementwise, CastThroughBf16RoundsToNearestEvenAndKeepsNan) {
    const Context context;
    const std::vector<float> values = {0.0F, -1.0F, 1.0F + 0x1p-8F, 1.0F + 3 * 0x1p-8F, 3.14159F, 1e30F, kInfinity, -kInfinity, kNan};
    const HostBuffer x = poisoned_f32({9});
    std::copy(values.begin(), values.end(), x.tensor().f32());
    const HostBuffer half(DType::kBF16, {9});
    const HostBuffer back = poisoned_f32({9});
    cast(context, x, half);
    cast(context, half, back);
    const float* p = back.tensor().f32();
    EXPECT_EQ(p[2], 1.0F);                // a tie, to even
    EXPECT_EQ(p[3], 1.0F + 4 * 0x1p-8F);  // a tie, to even
    EXPECT_EQ(p[6], kInfinity);
    EXPECT_EQ(p[7], -kInfinity);
    EXPECT_TRUE(std::isnan(p[8]));
    for (const std::size_t i : {0U, 1U, 4U, 5U}) EXPECT_LE(std::abs(p[i] - values[i]), std::abs(values[i]) * 0x1p-8F) << i;
}

TEST(Elementwise, EveryF16SurvivesTheWayThroughF32) {
    const Context context;
    const HostBuffer half(DType::kF16, {65536});
    for (int i = 0; i < 65536; ++i) half.tensor().ptr<std::uint16_t>()[i] = static_cast<std::uint16_t>(i);
    const HostBuffer wide = poisoned_f32({65536});
    const HostBuffer again(DType::kF16, {65536});
    cast(context, half, wide);
    cast(context, wide, again);
    for (int i = 0; i < 65536; ++i) {
        if (std::isnan(wide.tensor().f32()[i])) {
            EXPECT_TRUE(std::isnan(f16_to_float(again.tensor().ptr<std::uint16_t>()[i]))) << i;
        } else {
            EXPECT_EQ(again.tensor().ptr<std::uint16_t>()[i], i);
        }
    }
}

TEST(Elementwise, F16RoundsTiesToEvenAndOverflowsToInfinity) {
    EXPECT_EQ(f16_to_float(float_to_f16(1.0F + 0x1p-11F)), 1.0F);
    EXPECT_EQ(f16_to_float(float_to_f16(1.0F + 3 * 0x1p-11F)), 1.0F + 2 * 0x1p-10F);
    EXPECT_EQ(f16_to_float(float_to_f16(65519.0F)), 65504.0F);
    EXPECT_EQ(f16_to_float(float_to_f16(65520.0F)), kInfinity);
    EXPECT_EQ(f16_to_float(float_to_f16(-0x1p-25F)), 0.0F);
    EXPECT_EQ(f16_to_float(float_to_f16(3 * 0x1p-25F)), 2 * 0x1p-24F);
    EXPECT_EQ(f16_to_float(float_to_f16(0x1p-14F - 0x1p-26F)), 0x1p-14F);
}

TEST(Elementwise, CopyColumnsWritesItsColumnsAlone) {
    const Context context;
    const HostBuffer x = random_f32({4, 3}, 1);
    const HostBuffer y = poisoned_f32({4, 9});
    copy_columns(context, x, y, 5);
    for (std::int64_t r = 0; r < 4; ++r) {
        for (std::int64_t c = 0; c < 9; ++c) {
            const float value = y.tensor().f32()[r * 9 + c];
            if (c >= 5 && c < 8) {
                EXPECT_EQ(value, x.tensor().f32()[r * 3 + c - 5]);
            } else {
                EXPECT_TRUE(std::isnan(value));
            }
        }
    }
    EXPECT_THROW(copy_columns(context, x, y, 7), Error);
}

TEST(Elementwise, ArgmaxTakesTheFirstOfEqualsAndMarksNanRows) {
    const Context context;
    for (const std::int64_t columns : {1, 5, 16, 37, 1000}) {
        const HostBuffer x = random_f32({4, columns}, 3);
        float* p = x.tensor().f32();
        const std::int64_t last = columns - 1;
        p[last] = 10.0F;                                                             // row 0: the last
        p[columns + last / 2] = p[columns + last] = 10.0F;                           // row 1: two equals
        p[2 * columns + last] = kNan;                                                // row 2: NaN
        for (std::int64_t c = 0; c < columns; ++c) p[3 * columns + c] = -kInfinity;  // row 3: all equal
        const HostBuffer y = i32_tensor({-7, -7, -7, -7});
        argmax_rows(context, x, y);
        EXPECT_EQ(y.tensor().i32()[0], last);
        EXPECT_EQ(y.tensor().i32()[1], last / 2);
        EXPECT_EQ(y.tensor().i32()[2], -1);
        EXPECT_EQ(y.tensor().i32()[3], 0);
    }
}

TEST(Rows, GatherTakesRowsByIdAndNamesABadOne) {
    const Context context;
    const HostBuffer table = random_f32({5, 3}, 1);
    const HostBuffer y = poisoned_f32({4, 3});
    gather_rows(context, {table, i32_tensor({4, 0, 0, 2}), y});
    const int expected[] = {4, 0, 0, 2};
    for (int i = 0; i < 12; ++i) EXPECT_EQ(y.tensor().f32()[i], table.tensor().f32()[expected[i / 3] * 3 + i % 3]);
    for (const std::int32_t bad : {5, -1}) {
        try {
            gather_rows(context, {table, i32_tensor({0, bad, 0, 0}), y});
            FAIL() << "id " << bad << " was accepted";
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find("id " + std::to_string(bad) + " at 1"), std::string::npos) << error.what();
        }
    }
}

TEST(Rows, ScatterScalesItsRowsAndLeavesOthers) {
    const Context context;
    const HostBuffer x = random_f32({2, 3}, 1);
    const HostBuffer y = poisoned_f32({4, 3});
    const HostBuffer scale = random_f32({2}, 2);
    scatter_rows(context, {x, i32_tensor({3, 1}), scale, y});
    for (int c = 0; c < 3; ++c) {
        EXPECT_EQ(y.tensor().f32()[9 + c], scale.tensor().f32()[0] * x.tensor().f32()[c]);
        EXPECT_EQ(y.tensor().f32()[3 + c], scale.tensor().f32()[1] * x.tensor().f32()[3 + c]);
        EXPECT_TRUE(std::isnan(y.tensor().f32()[c]));
        EXPECT_TRUE(std::isnan(y.tensor().f32()[6 + c]));
    }
}

}  // namespace
}  // namespace dflash
