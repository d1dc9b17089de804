// SPDX-License-Identifier: MIT
#include "train/step_flops.h"

#include <gtest/gtest.h>

#include "support/errors.h"
#include "train/step_bench.h"

namespace dflash {
namespace {

// Two blocks of 2 slots in one document of 10 tokens, anchors at rows 3 and 6; sizes small enough to count by hand.
TEST(StepFlops, CountedByHand) {
    DraftSpec spec;
    spec.block_size = 2;
    spec.layers = {{DraftLayerKind::kSlidingAttention, 4, true}, {DraftLayerKind::kFullAttention, 0, false}};
    spec.taps = {0, 1, 2};
    spec.hidden = 8;
    spec.intermediate = 16;
    spec.heads = 2;
    spec.kv_heads = 1;
    spec.head_dim = 4;
    spec.vocabulary = 32;
    AnchorSet anchors;
    anchors.block_size = 2;
    anchors.capacity = 3;
    anchors.num_live = 2;
    anchors.begin_row = {0, 0, 0};
    anchors.anchor_row = {3, 6, 0};
    anchors.labels = {-1, 5, -1, 7, -1, -1};

    const double fusion = 2.0 * 10 * 3 * 8 * 8;
    // keys and values of 10 context rows and 4 slots; q and o of 8 columns; three feed-forward products
    const double products = 2.0 * 10 * 8 * 8 + 2.0 * 4 * 8 * (8 + 8 + 8 + 3 * 16);
    // sliding: slot 0 of row 3 sees rows 0-2 and itself, slot 1 rows 1-2 and two slots; row 6: rows 3-5, 4-5. full: 3+2 and 6+2 for each slot
    const double sliding_pairs = (3 + 1) + (2 + 2) + (3 + 1) + (2 + 2);
    const double full_pairs = 2 * (3 + 2) + 2 * (6 + 2);
    const double scores = 2 * 8 * (sliding_pairs + full_pairs);
    const StepFlops flops = count_step_flops(spec, 10, anchors);
    EXPECT_DOUBLE_EQ(flops.forward, fusion + 2 * products + 2 * scores);
    EXPECT_DOUBLE_EQ(flops.backward, fusion + 4 * products + 5 * scores);
    EXPECT_DOUBLE_EQ(flops.loss, 2 * 2.0 * 2 * 8 * 32);
    EXPECT_DOUBLE_EQ(count_step_flops(spec, 10, anchors, true).loss, 3 * 2.0 * 2 * 8 * 32);
}

TEST(StepBench, ShapesThatLackAKeyAreRefused) {
    EXPECT_TRUE(testing::refuses([] { parse_bench_shape(R"({"hidden": 64})", "s.json"); }, {"s.json", "intermediate"}));
    EXPECT_TRUE(testing::refuses([] { parse_bench_shape(R"({"hidden": 0})", "s.json"); }, {"s.json", "hidden"}));
}

TEST(StepBench, MedianOfOddAndEvenCounts) {
    EXPECT_EQ(median({3, 1, 2}), 2);
    EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
}

}  // namespace
}  // namespace dflash
