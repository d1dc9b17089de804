// SPDX-License-Identifier: MIT
#include "model/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "base/bf16.h"
#include "support/close.h"
#include "support/data.h"
#include "support/errors.h"

namespace dflash {
namespace {

using testing::close;

struct Table {
    HostBuffer cos, sin;
};
Table make_table(std::int64_t positions, double theta, std::int64_t dims, const RopeScalingLlama3& scaling = {}) {
    Table table{testing::poisoned_f32({positions, dims / 2}), testing::poisoned_f32({positions, dims / 2})};
    fill_rope_table({theta, dims, scaling}, table.cos, table.sin);
    return table;
}

// The definition, with the angle rounded as the table's is.
std::vector<double> expected(std::int64_t positions, const std::vector<double>& frequencies, bool is_sin) {
    std::vector<double> values;
    for (std::int64_t p = 0; p < positions; ++p) {
        for (const double f : frequencies) {
            const double angle = static_cast<float>(p) * static_cast<float>(f);
            values.push_back(is_sin ? std::sin(angle) : std::cos(angle));
        }
    }
    return values;
}

TEST(RopeTable, FollowsTheDefinition) {
    for (const std::int64_t dims : {2, 16, 64, 128}) {
        std::vector<double> frequencies;
        for (std::int64_t i = 0; i < dims / 2; ++i)
            frequencies.push_back(1 / std::pow(1e6, 2.0 * static_cast<double>(i) / static_cast<double>(dims)));
        const Table table = make_table(4099, 1e6, dims);
        EXPECT_TRUE(close(table.cos.tensor(), expected(4099, frequencies, false), testing::kOpF32)) << dims;
        EXPECT_TRUE(close(table.sin.tensor(), expected(4099, frequencies, true), testing::kOpF32)) << dims;
        EXPECT_EQ(table.cos.tensor().f32()[0], 1.0F);
        EXPECT_EQ(table.sin.tensor().f32()[0], 0.0F);
    }
}

TEST(RopeTable, RoundsFrequenciesWhereTheCheckpointSaysSo) {
    std::vector<double> frequencies;
    for (int i = 0; i < 8; ++i) frequencies.push_back(bf16_to_float(float_to_bf16(static_cast<float>(std::pow(1e4, -i / 8.0)))));
    Table table{testing::poisoned_f32({100, 8}), testing::poisoned_f32({100, 8})};
    fill_rope_table({.theta = 1e4, .rotary_dims = 16, .round_to_bf16 = true}, table.cos, table.sin);
    EXPECT_TRUE(close(table.cos.tensor(), expected(100, frequencies, false), testing::kOpF32));
    EXPECT_TRUE(close(table.sin.tensor(), expected(100, frequencies, true), testing::kOpF32));
}

// Three frequencies, one in each zone of the Llama 3 rule: o = 1000, low 1, high 4, so wavelengths 250 and 1000 are the borders.
TEST(RopeTable, Llama3ScalingKeepsBlendsAndStretches) {
    constexpr double kTheta = 1e4;
    const RopeScalingLlama3 scaling{true, 8, 1, 4, 1000};
    std::vector<double> frequencies;
    int kept = 0, blended = 0, stretched = 0;
    for (std::int64_t i = 0; i < 16; ++i) {
        const double f = std::pow(kTheta, -static_cast<double>(i) / 16);
        const double wavelength = 2 * std::numbers::pi / f;
        if (wavelength < 250) {
            frequencies.push_back(f);
            ++kept;
        } else if (wavelength > 1000) {
            frequencies.push_back(f / 8);
            ++stretched;
        } else {
            const double s = (1000 / wavelength - 1) / 3;
            frequencies.push_back((1 - s) * f / 8 + s * f);
            ++blended;
        }
    }
    EXPECT_GT(std::min({kept, blended, stretched}), 0);
    const Table table = make_table(257, kTheta, 32, scaling);
    EXPECT_TRUE(close(table.cos.tensor(), expected(257, frequencies, false), testing::kOpF32));
    EXPECT_TRUE(close(table.sin.tensor(), expected(257, frequencies, true), testing::kOpF32));
}

TEST(RopeTable, RefusesWrongShapes) {
    const HostBuffer table = testing::poisoned_f32({3, 4});
    EXPECT_TRUE(testing::throws(ErrorKind::kFailed, [&] { fill_rope_table({1e4, 7}, table, table); }, {"even"}));
    EXPECT_TRUE(testing::throws(ErrorKind::kFailed, [&] { fill_rope_table({1e4, 16}, table, table); }, {"(3, 4)"}));
}

}  // namespace
}  // namespace dflash
