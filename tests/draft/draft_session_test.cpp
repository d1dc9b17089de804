// SPDX-License-Identifier: MIT
// Decoding against training: the logits that a session proposes equal those of the step's forward at that anchor over the finished text.
#include "draft/draft_session.h"

#include <gtest/gtest.h>

#include "draft/anchors.h"
#include "draft_case.h"
#include "kernels/elementwise.h"
#include "support/close.h"

namespace dflash::testing {
namespace {

// A session over its own arena, beside a DraftCase that owns the weights.
struct SessionCase {
    Plan plan;
    Arena arena;
    DraftSession session;
    SessionCase(const DraftModel& model, const DraftSessionSettings& settings)
        : plan(make_plan({"all"}, draft_session_buffers(model.spec, settings, {0, 0}, {0, 0}))),
          arena(Device{}, plan),
          session(model, settings, arena) {}
};

DraftStepSettings step_settings(std::int64_t tokens) {
    DraftStepSettings settings;
    settings.max_tokens = tokens;
    settings.max_anchors = tokens;
    return settings;
}

// Appends in uneven pieces (as acceptance would), proposing in between, and compares every proposal with the step's forward.
void expect_parity(const DraftSpec& spec, std::int64_t tokens, std::int64_t prompt) {
    DraftCase c(spec, step_settings(tokens));
    SessionCase s(c.model(), {tokens, 7});
    const PackedBatch text = pack({{tokens, prompt}}, spec.vocabulary);
    const ToyFeatures features = toy_features(spec, tokens);
    for (int round = 0; round < 2; ++round) {
        s.session.reset();
        ASSERT_EQ(s.session.length(), 0);
        std::vector<std::int32_t> rows;
        std::vector<double> proposed;
        std::int64_t length = 0;
        std::int64_t piece = prompt;
        while (length + piece < tokens) {
            s.session.append_context(c.context(), features.taps.tensor().slice_rows(length, piece));
            length += piece;
            ASSERT_EQ(s.session.length(), length);
            rows.push_back(static_cast<std::int32_t>(length));
            const Tensor logits = s.session.propose(c.context(), text.ids[static_cast<std::size_t>(length)]);
            const std::vector<double> values = to_double(logits);
            proposed.insert(proposed.end(), values.begin(), values.end());
            ASSERT_EQ(s.session.length(), length);  // block rows leave no trace
            piece = 1 + static_cast<std::int64_t>(rows.size()) % (spec.block_size + 1);
        }
        AnchorSettings anchor_settings;
        anchor_settings.max_anchors = tokens;
        AnchorSet anchors;
        place_anchors(text, spec, anchor_settings, rows, anchors);
        const Tensor hidden = c.step().forward(c.context(), c.model(), text, features.view(), anchors);
        const std::vector<double> expected = ref::product(to_double(hidden), to_double(c.model().head), spec.hidden);
        EXPECT_TRUE(close(std::span<const double>(proposed), std::span<const double>(expected), kModelF32));
    }
}

TEST(DraftSession, ProposesWhatTrainingComputes) { expect_parity(toy_spec({kFull, kFull}), 40, 11); }
TEST(DraftSession, SlidingWindowsShorterThanTheText) { expect_parity(toy_spec({sliding(5), sliding(9), kFull}), 60, 23); }
TEST(DraftSession, BidirectionalSlidingLayers) { expect_parity(toy_spec({sliding(6, false)}), 40, 3); }
TEST(DraftSession, AShortPromptAndAWideBlock) { expect_parity(toy_spec({kFull, sliding(16)}, 16), 50, 1); }
TEST(DraftSession, AlignmentOne) {
    DraftSpec spec = toy_spec({kFull, sliding(6)});
    spec.alignment_shift = 1;
    expect_parity(spec, 30, 5);
}
TEST(DraftSession, LongPositions) { expect_parity(toy_spec({sliding(8), kFull}), 700, 640); }

TEST(DraftSession, ProposesWithoutAnyContext) {
    const DraftSpec spec = toy_spec({kFull, sliding(6)});
    DraftCase c(spec, step_settings(8));
    SessionCase s(c.model(), {8, 8});
    const PackedBatch text = pack({{8, 0}}, spec.vocabulary);
    const ToyFeatures features = toy_features(spec, 8);
    AnchorSettings settings;
    settings.max_anchors = 8;
    AnchorSet anchors;
    place_anchors(text, spec, settings, {0}, anchors);
    const Tensor hidden = c.step().forward(c.context(), c.model(), text, features.view(), anchors);
    const std::vector<double> expected = ref::product(to_double(hidden), to_double(c.model().head), spec.hidden);
    EXPECT_TRUE(close(s.session.propose(c.context(), text.ids[0]), expected, kModelF32));
}

// One append, many appends, or rows one by one: the cache is the same.
TEST(DraftSession, AppendSizesDoNotMatter) {
    const DraftSpec spec = toy_spec({sliding(6), kFull});
    DraftCase c(spec, step_settings(8));
    const ToyFeatures features = toy_features(spec, 30);
    SessionCase whole(c.model(), {32, 32});
    whole.session.append_context(c.context(), features.taps);
    const std::vector<double> expected = to_double(whole.session.propose(c.context(), 3));
    SessionCase single(c.model(), {32, 1});
    single.session.append_context(c.context(), features.taps);
    EXPECT_EQ(single.session.length(), 30);
    EXPECT_TRUE(close(single.session.propose(c.context(), 3), expected, kChunkF32));
}

TEST(DraftSession, RefusesMoreThanItsPositions) {
    DraftSpec spec = toy_spec();
    spec.max_positions = 16;
    DraftCase c(spec, step_settings(8));
    SessionCase s(c.model(), {32, 32});
    const ToyFeatures features = toy_features(spec, 17);
    EXPECT_THROW(s.session.append_context(c.context(), features.taps), Error);
    s.session.append_context(c.context(), features.taps.tensor().slice_rows(0, 16));
    EXPECT_EQ(s.session.length(), 16);
}

}  // namespace
}  // namespace dflash::testing
