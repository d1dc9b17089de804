// SPDX-License-Identifier: MIT
// Elementwise ops and the moving of rows.
#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/bf16.h"
#include "kernels/embedding.h"
#include "support/close.h"
#include "support/data.h"
#include "support/device_case.h"

namespace dflash {
namespace {

using testing::i32_tensor;
using testing::poisoned_f32;
using testing::random_f32;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Elementwise : public testing::DeviceTest {
protected:
    // What a result is after it went through memory of this kind.
    float rounded(float x, testing::Stored stored) const {
        const bool narrow = stored == testing::kWorking && working_dtype(device()) == DType::kBF16;
        return narrow ? bf16_to_float(float_to_bf16(x)) : x;
    }
};
constexpr testing::Stored kBothKinds[] = {testing::kWorking, testing::kAsIs};

TEST_P(Elementwise, FillZeroReplacesNanForAnySize) {
    for (const std::int64_t n : {0, 1, 17, 20001}) {
        const HostBuffer y = poisoned_f32({n});
        fill_zero(context(), out(y));
        finish();
        for (const float value : testing::f32_span(y)) ASSERT_EQ(value, 0.0F);
        forget();
    }
}

TEST_P(Elementwise, AddAddsEveryElementOnce) {
    for (const testing::Stored stored : kBothKinds) {
        for (const std::int64_t n : {1, 17, 20001}) {
            const HostBuffer x = random_f32({n}, 1), y = random_f32({n}, 2);
            const Tensor x_in = in(x, stored), y_in = in_out(y, stored);
            std::vector<float> expected(static_cast<std::size_t>(n));
            for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = rounded(y.tensor().f32()[i] + x.tensor().f32()[i], stored);
            add(context(), x_in, y_in);
            finish();
            for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(y.tensor().f32()[i], expected[i]) << i;
            forget();
        }
    }
}

TEST_P(Elementwise, CastThroughBf16RoundsToNearestEvenAndKeepsNan) {
    const std::vector<float> values = {0.0F, -1.0F, 1.0F + 0x1p-8F, 1.0F + 3 * 0x1p-8F, 3.14159F, 1e30F, kInfinity, -kInfinity, kNan};
    const HostBuffer x = poisoned_f32({9});
    std::copy(values.begin(), values.end(), x.tensor().f32());
    const HostBuffer half(DType::kBF16, {9});
    const HostBuffer back = poisoned_f32({9});
    const Tensor half_out = out(half);
    cast(context(), in(x, testing::kAsIs), half_out);
    cast(context(), half_out, out(back, testing::kAsIs));
    finish();
    const float* p = back.tensor().f32();
    EXPECT_EQ(p[2], 1.0F);                // a tie, to even
    EXPECT_EQ(p[3], 1.0F + 4 * 0x1p-8F);  // a tie, to even
    EXPECT_EQ(p[6], kInfinity);
    EXPECT_EQ(p[7], -kInfinity);
    EXPECT_TRUE(std::isnan(p[8]));
    for (const std::size_t i : {0U, 1U, 4U, 5U}) EXPECT_LE(std::abs(p[i] - values[i]), std::abs(values[i]) * 0x1p-8F) << i;
}

TEST_P(Elementwise, EveryF16SurvivesTheWayThroughF32) {
    const HostBuffer half(DType::kF16, {65536});
    for (int i = 0; i < 65536; ++i) half.tensor().ptr<std::uint16_t>()[i] = static_cast<std::uint16_t>(i);
    const HostBuffer wide = poisoned_f32({65536});
    const HostBuffer again(DType::kF16, {65536});
    const Tensor wide_out = out(wide, testing::kAsIs);
    cast(context(), in(half), wide_out);
    cast(context(), wide_out, out(again));
    finish();
    for (int i = 0; i < 65536; ++i) {
        if (std::isnan(wide.tensor().f32()[i])) {
            EXPECT_TRUE(std::isnan(f16_to_float(again.tensor().ptr<std::uint16_t>()[i]))) << i;
        } else {
            EXPECT_EQ(again.tensor().ptr<std::uint16_t>()[i], i);
        }
    }
}

TEST(HalfConversion, F16RoundsTiesToEvenAndOverflowsToInfinity) {
    EXPECT_EQ(f16_to_float(float_to_f16(1.0F + 0x1p-11F)), 1.0F);
    EXPECT_EQ(f16_to_float(float_to_f16(1.0F + 3 * 0x1p-11F)), 1.0F + 2 * 0x1p-10F);
    EXPECT_EQ(f16_to_float(float_to_f16(65519.0F)), 65504.0F);
    EXPECT_EQ(f16_to_float(float_to_f16(65520.0F)), kInfinity);
    EXPECT_EQ(f16_to_float(float_to_f16(-0x1p-25F)), 0.0F);
    EXPECT_EQ(f16_to_float(float_to_f16(3 * 0x1p-25F)), 2 * 0x1p-24F);
    EXPECT_EQ(f16_to_float(float_to_f16(0x1p-14F - 0x1p-26F)), 0x1p-14F);
}

TEST_P(Elementwise, CopyColumnsWritesItsColumnsAlone) {
    for (const testing::Stored stored : kBothKinds) {
        const HostBuffer x = random_f32({4, 3}, 1);
        const HostBuffer y = poisoned_f32({4, 9});
        const Tensor x_in = in(x, stored), y_out = out(y, stored);
        copy_columns(context(), x_in, y_out, 5);
        finish();
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
        EXPECT_THROW(copy_columns(context(), x_in, y_out, 7), Error);
        forget();
    }
}

TEST_P(Elementwise, ArgmaxTakesTheFirstOfEqualsAndMarksNanRows) {
    for (const testing::Stored stored : kBothKinds) {
        for (const std::int64_t columns : {1, 5, 16, 37, 1000}) {
            const HostBuffer x = random_f32({4, columns}, 3);
            float* p = x.tensor().f32();
            const std::int64_t last = columns - 1;
            p[last] = 10.0F;                                                             // row 0: the last
            p[columns + last / 2] = p[columns + last] = 10.0F;                           // row 1: two equals
            p[2 * columns + last] = kNan;                                                // row 2: NaN
            for (std::int64_t c = 0; c < columns; ++c) p[3 * columns + c] = -kInfinity;  // row 3: all equal
            const HostBuffer y = i32_tensor({-7, -7, -7, -7});
            argmax_rows(context(), in(x, stored), in_out(y));
            finish();
            EXPECT_EQ(y.tensor().i32()[0], last);
            EXPECT_EQ(y.tensor().i32()[1], last / 2);
            EXPECT_EQ(y.tensor().i32()[2], -1);
            EXPECT_EQ(y.tensor().i32()[3], 0);
            forget();
        }
    }
}

DFLASH_ON_EACH_DEVICE(Elementwise);

class Rows : public Elementwise {};

TEST_P(Rows, GatherTakesRowsByIdAndMarksABadOne) {
    for (const int columns : {3, 16}) {
        const HostBuffer table = random_f32({5, columns}, 1);
        const HostBuffer y = poisoned_f32({4, columns});
        const HostBuffer ids = i32_tensor({4, 0, 0, 2});
        const Tensor table_in = in(table), y_out = out(y);
        gather_rows(context(), {table_in, in(ids), y_out});
        finish();
        const auto expect_row = [&](int row, int id) {
            for (int c = 0; c < columns; ++c) EXPECT_EQ(y.tensor().f32()[row * columns + c], table.tensor().f32()[id * columns + c]);
        };
        for (int row = 0; row < 4; ++row) expect_row(row, ids.tensor().i32()[row]);
        for (const std::int32_t bad : {5, -1}) {
            const HostBuffer bad_ids = i32_tensor({1, bad, 2, 3});
            if (device().type == DeviceType::kCuda) {  // nobody waits to read the ids: the row becomes NaN
                gather_rows(context(), {table_in, in(bad_ids), y_out});
                finish();
                expect_row(0, 1);
                EXPECT_TRUE(std::isnan(y.tensor().f32()[columns]));
                expect_row(2, 2);
                continue;
            }
            try {
                gather_rows(context(), {table_in, in(bad_ids), y_out});
                FAIL() << "id " << bad << " was accepted";
            } catch (const Error& error) {
                EXPECT_NE(std::string(error.what()).find("id " + std::to_string(bad) + " at 1"), std::string::npos) << error.what();
            }
        }
        forget();
    }
}

TEST_P(Rows, ScatterScalesItsRowsAndLeavesOthers) {
    for (const int columns : {3, 16}) {
        const HostBuffer x = random_f32({2, columns}, 1);
        const HostBuffer y = poisoned_f32({4, columns});
        const HostBuffer scale = random_f32({2}, 2), ids = i32_tensor({3, 1});
        scatter_rows(context(), {in(x), in(ids), in(scale, testing::kAsIs), out(y)});
        finish();
        const float *from = x.tensor().f32(), *to = y.tensor().f32(), *factor = scale.tensor().f32();
        for (int c = 0; c < columns; ++c) {
            EXPECT_EQ(to[3 * columns + c], rounded(factor[0] * from[c], testing::kWorking));
            EXPECT_EQ(to[columns + c], rounded(factor[1] * from[columns + c], testing::kWorking));
            EXPECT_TRUE(std::isnan(to[c]));
            EXPECT_TRUE(std::isnan(to[2 * columns + c]));
        }
        forget();
    }
}

DFLASH_ON_EACH_DEVICE(Rows);

}  // namespace
}  // namespace dflash
