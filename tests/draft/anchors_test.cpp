// SPDX-License-Identifier: MIT
#include "draft/anchors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "draft_case.h"

namespace dflash::testing {
namespace {

AnchorSettings capacity(std::int64_t max_anchors, std::uint64_t seed = 1) {
    AnchorSettings settings;
    settings.max_anchors = max_anchors;
    settings.seed = seed;
    return settings;
}

DraftSpec anchor_spec(std::int64_t block_size, std::int64_t shift = 0) {
    DraftSpec spec = toy_spec({kFull}, block_size);
    spec.alignment_shift = shift;
    spec.vocabulary = 1000;
    spec.mask_token = 999;
    return spec;
}

std::vector<std::int32_t> live_rows_of(const AnchorSet& anchors) {
    return {anchors.anchor_row.begin(), anchors.anchor_row.begin() + anchors.num_live};
}

TEST(DecayGamma, IsTheDesignsAndLinearBetween) {
    EXPECT_DOUBLE_EQ(default_decay_gamma(8), 4.0);
    EXPECT_DOUBLE_EQ(default_decay_gamma(9), 4.5);
    EXPECT_DOUBLE_EQ(default_decay_gamma(10), 5.0);
    EXPECT_DOUBLE_EQ(default_decay_gamma(13), 6.0);
    EXPECT_DOUBLE_EQ(default_decay_gamma(16), 7.0);
}

// A label never comes from beyond the anchor's document, whatever lies behind it (documents of 7, 3 and 20 tokens, block 8).
TEST(Anchors, BlocksStayInTheirDocument) {
    PackedBatch batch = pack({{7, 0}, {3, 0}, {20, 0}}, 1000);
    for (std::size_t row = 0; row < batch.ids.size(); ++row) batch.ids[row] = 100 * (batch.document[row] + 1) + batch.position[row];
    const DraftSpec spec = anchor_spec(8);
    AnchorSet anchors;
    draw_anchors(batch, spec, capacity(64), {}, anchors);
    EXPECT_EQ(anchors.num_eligible, 6 + 2 + 19);
    ASSERT_EQ(anchors.num_live, anchors.num_eligible);
    for (std::int64_t block = 0; block < anchors.num_live; ++block) {
        const auto b = static_cast<std::size_t>(block);
        const std::int32_t row = anchors.anchor_row[b];
        const auto document = static_cast<std::size_t>(batch.document[static_cast<std::size_t>(row)]);
        EXPECT_EQ(anchors.begin_row[b], batch.document_begin[document]);
        for (std::int64_t k = 0; k < 8; ++k) {
            const auto slot = static_cast<std::size_t>(block * 8 + k);
            EXPECT_EQ(anchors.block_position[slot], batch.position[static_cast<std::size_t>(row)] + k);
            EXPECT_EQ(anchors.block_ids[slot], k == 0 ? batch.ids[static_cast<std::size_t>(row)] : 999);
            const bool inside = row + k < batch.document_begin[document + 1];
            const bool labelled = k > 0 && inside;
            EXPECT_EQ(anchors.labels[slot], labelled ? batch.ids[static_cast<std::size_t>(row + k)] : -1);
            EXPECT_EQ(anchors.teacher_row[slot], labelled ? row + k - 1 : -1);
            EXPECT_EQ(anchors.weight[slot] > 0, labelled);
        }
    }
}

// Each token of the answer that decoding would draft is a label exactly once when every eligible anchor has a block of two; no other is.
TEST(Anchors, SuperviseEveryDraftableTokenOnce) {
    const PackedBatch batch = pack({{8, 5}}, 1000);
    AnchorSet anchors;
    draw_anchors(batch, anchor_spec(2), capacity(8), {}, anchors);
    EXPECT_EQ(live_rows_of(anchors), (std::vector<std::int32_t>{5, 6}));
    std::multiset<std::int32_t> labels;
    for (const std::int32_t label : anchors.labels) {
        if (label >= 0) labels.insert(label);
    }
    EXPECT_EQ(labels, (std::multiset<std::int32_t>{batch.ids[6], batch.ids[7]}));
}

TEST(Anchors, IdsLabelsMaskAndPositionsShareOneIndex) {
    PackedBatch batch = pack({{16, 0}}, 1000);
    for (std::int32_t i = 0; i < 16; ++i) {
        batch.ids[static_cast<std::size_t>(i)] = i;
        batch.loss_mask[static_cast<std::size_t>(i)] = i >= 8 && i <= 11 ? 1 : 0;
    }
    AnchorSet anchors;
    draw_anchors(batch, anchor_spec(4), capacity(16), {}, anchors);
    EXPECT_EQ(live_rows_of(anchors), (std::vector<std::int32_t>{8, 9, 10}));
    const std::vector<std::int32_t> expected = {-1, 9, 10, 11, -1, 10, 11, -1, -1, 11, -1, -1};
    EXPECT_EQ(std::vector<std::int32_t>(anchors.labels.begin(), anchors.labels.begin() + 12), expected);
}

// One token that is not the assistant's ends a block's labels, even if later ones are its own again.
TEST(Anchors, LabelsArePrefixClosed) {
    PackedBatch batch = pack({{9, 0}}, 1000);
    batch.loss_mask[4] = 0;
    AnchorSet anchors;
    place_anchors(batch, anchor_spec(8), capacity(2), {2}, anchors);
    EXPECT_GE(anchors.labels[1], 0);
    for (std::size_t k = 2; k < 8; ++k) EXPECT_EQ(anchors.labels[k], -1) << k;
}

TEST(Anchors, ShiftOneLabelsTheNextToken) {
    const PackedBatch batch = pack({{6, 0}}, 1000);
    const DraftSpec spec = anchor_spec(4, 1);
    EXPECT_EQ(spec.first_weighted_slot(), 0);
    AnchorSet anchors;
    place_anchors(batch, spec, capacity(2), {1, 3}, anchors);
    const std::vector<std::int32_t> expected = {batch.ids[2], batch.ids[3], batch.ids[4], batch.ids[5], batch.ids[4], batch.ids[5], -1, -1};
    EXPECT_EQ(anchors.labels, expected);
    EXPECT_EQ(anchors.teacher_row, (std::vector<std::int32_t>{1, 2, 3, 4, 3, 4, -1, -1}));
    EXPECT_EQ(anchors.weight[0], 1.0F);
    EXPECT_EQ(anchors.weight[1], static_cast<float>(std::exp(-1.0 / default_decay_gamma(4))));
}

TEST(Anchors, WeightsDecayFromTheFirstDraft) {
    const PackedBatch batch = pack({{10, 0}}, 1000);
    AnchorSettings settings = capacity(1);
    settings.decay_gamma = 2.5;
    AnchorSet anchors;
    place_anchors(batch, anchor_spec(4), settings, {0}, anchors);
    double sum = 0;
    for (std::size_t k = 1; k < 4; ++k) {
        const double w = std::exp(-static_cast<double>(k - 1) / 2.5);
        EXPECT_EQ(anchors.weight[k], static_cast<float>(w));
        sum += static_cast<double>(anchors.weight[k]);
    }
    EXPECT_DOUBLE_EQ(anchors.weight_sum, sum);
    settings.uniform_weights = true;
    place_anchors(batch, anchor_spec(4), settings, {0}, anchors);
    EXPECT_EQ(anchors.weight, (std::vector<float>{0, 1, 1, 1}));
}

TEST(Anchors, NeverStandOnAnEndToken) {
    PackedBatch batch = pack({{12, 2}}, 1000);
    batch.ids[5] = 990;
    batch.ids[8] = 991;
    AnchorSet anchors;
    draw_anchors(batch, anchor_spec(4), capacity(32), {990, 991}, anchors);
    EXPECT_EQ(live_rows_of(anchors), (std::vector<std::int32_t>{2, 3, 4, 6, 7, 9, 10}));
}

TEST(Anchors, DeadCapacitySeesNothing) {
    const PackedBatch batch = pack({{5, 2}}, 1000);
    AnchorSet anchors;
    draw_anchors(batch, anchor_spec(4), capacity(7), {}, anchors);
    EXPECT_EQ(anchors.num_live, 2);
    EXPECT_EQ(anchors.live_rows(), 8);
    for (std::size_t slot = 8; slot < 28; ++slot) {
        EXPECT_EQ(anchors.labels[slot], -1);
        EXPECT_EQ(anchors.weight[slot], 0.0F);
        EXPECT_EQ(anchors.block_ids[slot], 999);
    }
    draw_anchors(pack({{5, 5}}, 1000), anchor_spec(4), capacity(7), {}, anchors);
    EXPECT_EQ(anchors.num_live, 0);
    EXPECT_EQ(anchors.weight_sum, 0.0);
}

TEST(Anchors, DependOnSeedEpochAndMicroBatchAlone) {
    PackedBatch batch = pack({{90, 0}, {40, 5}}, 1000);
    const DraftSpec spec = anchor_spec(4);
    AnchorSet first;
    AnchorSet second;
    draw_anchors(batch, spec, capacity(20, 9), {}, first);
    draw_anchors(batch, spec, capacity(20, 9), {}, second);
    EXPECT_EQ(first.anchor_row, second.anchor_row);
    EXPECT_TRUE(std::is_sorted(first.anchor_row.begin(), first.anchor_row.end()));
    EXPECT_EQ(std::set<std::int32_t>(first.anchor_row.begin(), first.anchor_row.end()).size(), 20U);
    draw_anchors(batch, spec, capacity(20, 10), {}, second);
    EXPECT_NE(first.anchor_row, second.anchor_row);
    batch.index = 1;
    draw_anchors(batch, spec, capacity(20, 9), {}, second);
    EXPECT_NE(first.anchor_row, second.anchor_row);
    batch.index = 0;
    batch.epoch = 1;
    draw_anchors(batch, spec, capacity(20, 9), {}, second);
    EXPECT_NE(first.anchor_row, second.anchor_row);
}

// The unit of the limit is the micro-batch: one long and many short documents share it in proportion to their eligible positions.
TEST(Anchors, AreUniformOverTheMicroBatch) {
    std::vector<ToyDocument> documents = {{200, 0}};
    for (int i = 0; i < 30; ++i) documents.push_back({6, 2});
    PackedBatch batch = pack(documents, 1000);
    const DraftSpec spec = anchor_spec(4);
    constexpr int kDraws = 2000;
    constexpr std::int64_t kAnchors = 32;
    std::map<std::int32_t, int> counts;
    AnchorSet anchors;
    for (int draw = 0; draw < kDraws; ++draw) {
        batch.index = draw;
        draw_anchors(batch, spec, capacity(kAnchors), {}, anchors);
        ASSERT_EQ(anchors.num_live, kAnchors);
        for (const std::int32_t row : live_rows_of(anchors)) ++counts[row];
    }
    const auto eligible = static_cast<double>(199 + 30 * 3);
    EXPECT_EQ(static_cast<double>(anchors.num_eligible), eligible);
    EXPECT_EQ(static_cast<double>(counts.size()), eligible);
    const double expected = kDraws * static_cast<double>(kAnchors) / eligible;
    double chi_square = 0;
    for (const auto& [row, count] : counts) chi_square += (count - expected) * (count - expected) / expected;
    // Draws without replacement vary less than chi-square's: the mean is eligible - kAnchors. Five standard deviations above it.
    EXPECT_LT(chi_square, eligible - kAnchors + 5 * std::sqrt(2 * eligible));
    EXPECT_GT(chi_square, eligible - kAnchors - 5 * std::sqrt(2 * eligible));
}

TEST(Anchors, RefillingAllocatesNothing) {
    AnchorSet anchors;
    draw_anchors(pack({{50, 0}}, 1000), anchor_spec(4), capacity(16), {}, anchors);
    const void* before[] = {anchors.begin_row.data(), anchors.anchor_row.data(),  anchors.block_ids.data(), anchors.block_position.data(),
                            anchors.labels.data(),    anchors.teacher_row.data(), anchors.weight.data()};
    draw_anchors(pack({{90, 3}, {7, 0}}, 1000), anchor_spec(4), capacity(16, 5), {}, anchors);
    const void* after[] = {anchors.begin_row.data(), anchors.anchor_row.data(),  anchors.block_ids.data(), anchors.block_position.data(),
                           anchors.labels.data(),    anchors.teacher_row.data(), anchors.weight.data()};
    EXPECT_TRUE(std::equal(std::begin(before), std::end(before), std::begin(after)));
}

}  // namespace
}  // namespace dflash::testing
