// SPDX-License-Identifier: MIT
// Decoding against training: the logits that a session proposes equal those of the step's forward at that anchor over the finished text.
#include "draft/draft_session.h"

#include <gtest/gtest.h>

#include "draft/anchors.h"
#include "draft_case.h"
#include "kernels/elementwise.h"
#include "support/close.h"
#include "support/device_case.h"

namespace dflash::testing {
namespace {

// A drafter's step, and sessions of the same weights over arenas of their own.
class StepAndSessions : public DraftCase {
public:
    StepAndSessions(const DraftSpec& spec, std::int64_t tokens, Device device)
        : DraftCase(spec, {.max_tokens = tokens, .max_anchors = tokens, .device = device}) {}

    struct Session {
        Arena arena;
        DraftSession session;
        Session(const DraftModel& model, const DraftSessionSettings& settings)
            : arena(settings.device, make_plan({"all"}, draft_session_buffers(model.spec, settings, {0, 0}, {0, 0}))),
              session(model, settings, arena) {}
    };
    Session make_session(std::int64_t max_tokens, std::int64_t max_append) {
        return {model(), {.max_tokens = max_tokens, .max_append = max_append, .device = settings().device}};
    }
    // Logits of the step's forward.
    std::vector<double> logits(const PackedBatch& text, const TargetFeatures& features, const AnchorSet& anchors) {
        return ref::product(hidden(text, features, anchors), values(model().head), spec().hidden);
    }
};

class DraftSessionTest : public DeviceTest {
protected:
    void expect_parity(const DraftSpec& spec, std::int64_t tokens, std::int64_t prompt) const;
    // Against the step's hidden states times the head in double.
    ::testing::AssertionResult agree(const std::vector<double>& got, const std::vector<double>& expected, Tolerance bound) const {
        return close(std::span<const double>(got), std::span<const double>(expected), tolerance(bound));
    }
};

// Appends in uneven pieces (as acceptance would), proposing in between, and compares every proposal with the step's forward.
void DraftSessionTest::expect_parity(const DraftSpec& spec, std::int64_t tokens, std::int64_t prompt) const {
    StepAndSessions c(spec, tokens, device());
    StepAndSessions::Session s = c.make_session(tokens, 7);
    const PackedBatch text = pack({{tokens, prompt}}, spec.vocabulary);
    const ToyFeatures features(c.context(), spec, tokens);
    for (int round = 0; round < 2; ++round) {
        s.session.reset();
        ASSERT_EQ(s.session.length(), 0);
        std::vector<std::int32_t> rows;
        std::vector<double> proposed;
        std::int64_t length = 0;
        std::int64_t piece = prompt;
        while (length + piece < tokens) {
            s.session.append_context(c.context(), features.rows(length, piece).taps);
            length += piece;
            ASSERT_EQ(s.session.length(), length);
            rows.push_back(static_cast<std::int32_t>(length));
            const std::vector<double> values = c.values(s.session.propose(c.context(), text.ids[static_cast<std::size_t>(length)]));
            proposed.insert(proposed.end(), values.begin(), values.end());
            ASSERT_EQ(s.session.length(), length);  // block rows leave no trace
            piece = 1 + static_cast<std::int64_t>(rows.size()) % (spec.block_size + 1);
        }
        AnchorSettings anchor_settings;
        anchor_settings.max_anchors = tokens;
        AnchorSet anchors;
        place_anchors(text, spec, anchor_settings, rows, anchors);
        EXPECT_TRUE(agree(proposed, c.logits(text, features.view(), anchors), kModelF32));
    }
}

TEST_P(DraftSessionTest, ProposesWhatTrainingComputes) { expect_parity(toy_spec({kFull, kFull}), 40, 11); }
TEST_P(DraftSessionTest, SlidingWindowsShorterThanTheText) { expect_parity(toy_spec({sliding(5), sliding(9), kFull}), 60, 23); }
TEST_P(DraftSessionTest, BidirectionalSlidingLayers) { expect_parity(toy_spec({sliding(6, false)}), 40, 3); }
TEST_P(DraftSessionTest, AShortPromptAndAWideBlock) { expect_parity(toy_spec({kFull, sliding(16)}, 16), 50, 1); }
TEST_P(DraftSessionTest, AlignmentOne) {
    DraftSpec spec = toy_spec({kFull, sliding(6)});
    spec.alignment_shift = 1;
    expect_parity(spec, 30, 5);
}
TEST_P(DraftSessionTest, LongPositions) { expect_parity(toy_spec({sliding(8), kFull}), 700, 640); }

TEST_P(DraftSessionTest, ProposesWithoutAnyContext) {
    const DraftSpec spec = toy_spec({kFull, sliding(6)});
    StepAndSessions c(spec, 8, device());
    StepAndSessions::Session s = c.make_session(8, 8);
    const PackedBatch text = pack({{8, 0}}, spec.vocabulary);
    const ToyFeatures features(c.context(), spec, 8);
    AnchorSettings settings;
    settings.max_anchors = 8;
    AnchorSet anchors;
    place_anchors(text, spec, settings, {0}, anchors);
    const std::vector<double> proposed = c.values(s.session.propose(c.context(), text.ids[0]));
    EXPECT_TRUE(agree(proposed, c.logits(text, features.view(), anchors), kModelF32));
}

// One append, many appends, or rows one by one: the cache is the same.
TEST_P(DraftSessionTest, AppendSizesDoNotMatter) {
    const DraftSpec spec = toy_spec({sliding(6), kFull});
    StepAndSessions c(spec, 8, device());
    const ToyFeatures features(c.context(), spec, 30);
    const auto proposed = [&](std::int64_t max_append) {
        StepAndSessions::Session s = c.make_session(32, max_append);
        s.session.append_context(c.context(), features.view().taps);
        EXPECT_EQ(s.session.length(), 30);
        return c.values(s.session.propose(c.context(), 3));
    };
    EXPECT_TRUE(agree(proposed(1), proposed(32), kChunkF32));
}

TEST_P(DraftSessionTest, RefusesMoreThanItsPositions) {
    DraftSpec spec = toy_spec();
    spec.max_positions = 16;
    StepAndSessions c(spec, 8, device());
    StepAndSessions::Session s = c.make_session(32, 32);
    const ToyFeatures features(c.context(), spec, 17);
    EXPECT_THROW(s.session.append_context(c.context(), features.view().taps), Error);
    s.session.append_context(c.context(), features.rows(0, 16).taps);
    EXPECT_EQ(s.session.length(), 16);
}

DFLASH_ON_EACH_DEVICE(DraftSessionTest);

}  // namespace
}  // namespace dflash::testing
