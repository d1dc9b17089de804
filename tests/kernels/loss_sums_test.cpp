// SPDX-License-Identifier: MIT
#include "kernels/loss_sums.h"

#include <gtest/gtest.h>

#include "support/close.h"
#include "support/data.h"
#include "support/device_case.h"

namespace dflash {
namespace {

using testing::close;
using testing::f64_tensor;
using testing::i32_tensor;

HostBuffer f32_tensor(const std::vector<float>& values) {
    HostBuffer buffer(DType::kF32, {static_cast<std::int64_t>(values.size())});
    std::copy(values.begin(), values.end(), buffer.tensor().f32());
    return buffer;
}

// Blocks of 4: block 0 has slots 1..3, block 2 slot 1 alone, block 5 slots 1 and 2.
const std::vector<std::int32_t> kRows = {1, 2, 3, 9, 21, 22};
constexpr std::int64_t kBlock = 4;

class LossRows : public testing::DeviceTest {
protected:
    Tensor kept(const Tensor& host) { return in(host, testing::kAsIs); }
};

TEST_P(LossRows, DpaceWeightsAreTheSumsOfPrefixProductsFromTheSlotOn) {
    const std::vector<float> q = {0.5F, 0.25F, 0.75F, 0.1F, 0.9F, 0.0F};
    const double alpha = 0.2;
    const HostBuffer weight = f32_tensor({1, 1, 1, 2, 1, 1});
    const HostBuffer rows = i32_tensor(kRows), prob = f32_tensor(q);
    dpace_weights(
        context(),
        {.rows = kept(rows), .label_prob = kept(prob), .block_size = kBlock, .alpha = alpha, .weight = in_out(weight, testing::kAsIs)});
    finish();
    const auto s = [&](std::size_t i) { return (1 - alpha) * static_cast<double>(q[i]) + alpha; };
    const double p1 = s(0), p2 = p1 * s(1), p3 = p2 * s(2), r1 = s(4), r2 = r1 * s(5);
    const std::vector<double> expected = {p1 + p2 + p3, p2 + p3, p3, 2 * s(3), r1 + r2, r2};
    EXPECT_TRUE(close(weight, expected, testing::kOpF32));
}

TEST_P(LossRows, SumsAddWeightedLossesSlotsAndUnbrokenRuns) {
    const HostBuffer sums = f64_tensor({10, 20, 30, 0, 0, 0, 0, 0, 0, 0, 1});  // accumulates over what is there
    const HostBuffer rows = i32_tensor(kRows), loss = f32_tensor({1, 2, 3, 4, 5, 6}), weight = f32_tensor({1, 0.5F, 0.25F, 1, 1, 0}),
                     correct = i32_tensor({1, 1, 0, 0, 0, 1});
    loss_sums(context(), {.rows = kept(rows),
                          .loss = kept(loss),
                          .weight = kept(weight),
                          .correct = kept(correct),
                          .block_size = kBlock,
                          .sums = in_out(sums)});
    finish();
    const std::vector<double> expected = {10 + 1 + 1 + 0.75 + 4 + 5, 20 + 3.75, 30 + 2, 0, 3, 2, 1, 0, 1, 2, 1};
    EXPECT_TRUE(close(std::span<const double>(sums.tensor().f64(), 11), std::span<const double>(expected), testing::kOpF32));
}

TEST_P(LossRows, SumsOfNoRowsAreUnchanged) {
    const HostBuffer none = i32_tensor({}), nothing(DType::kF32, {0});
    const HostBuffer sums = f64_tensor(std::vector<double>(11, 1.0));
    const Tensor no_rows = kept(none), no_values = kept(nothing);
    loss_sums(context(),
              {.rows = no_rows, .loss = no_values, .weight = no_values, .correct = no_rows, .block_size = kBlock, .sums = in_out(sums)});
    finish();
    for (int i = 0; i < 11; ++i) EXPECT_EQ(sums.tensor().f64()[i], 1.0);
}

DFLASH_ON_EACH_DEVICE(LossRows);

}  // namespace
}  // namespace dflash
