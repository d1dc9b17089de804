// SPDX-License-Identifier: MIT
// The whole step (forward, loss, backward) against the scalar reference in double, whose derivatives are recorded, not written by hand.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "draft/anchors.h"
#include "draft_case.h"
#include "support/close.h"
#include "tape.h"

namespace dflash::testing {
namespace {

using ref::draft_hidden;
using ref::draft_loss;

struct Scenario {
    const char* name;
    std::vector<DraftLayerSpec> layers;
    std::int64_t block_size = 4;
    std::int64_t shift = 0;
    LossKind loss = LossKind::kCrossEntropy;
    Weighting weighting = Weighting::kDecay;
    Recompute recompute = Recompute::kNone;
    std::int64_t anchors = 9;  // fewer than eligible; 40: dead blocks
};

std::vector<Scenario> scenarios() {
    const auto kl = LossKind::kKl;
    const auto ce = LossKind::kCrossEntropy;
    const DraftLayerSpec causal_full{DraftLayerKind::kFullAttention, 0, true};
    return {
        {"full", {kFull, kFull}},
        {"sliding", {sliding(6), sliding(6)}},
        {"mixed", {sliding(5), sliding(5), kFull}, 3},
        {"sliding_bidirectional", {sliding(7, false)}, 5},
        {"full_causal", {causal_full, causal_full}, 4},
        {"window_of_one_block", {sliding(4), kFull}, 4},
        {"shift_one", {kFull, sliding(6)}, 4, 1},
        {"dead_blocks", {kFull, sliding(6)}, 4, 0, ce, Weighting::kDecay, Recompute::kNone, 40},
        {"kl", {kFull, sliding(6)}, 4, 0, kl},
        {"kl_shift_one", {sliding(6), kFull}, 4, 1, kl},
        {"dpace", {kFull, sliding(6)}, 4, 0, ce, Weighting::kDpace},
        {"dpace_kl", {kFull}, 6, 0, kl, Weighting::kDpace},
        {"recompute", {sliding(6), kFull, sliding(9)}, 4, 0, ce, Weighting::kDpace, Recompute::kLayer},
        {"recompute_attention", {sliding(6), kFull, sliding(9)}, 4, 0, ce, Weighting::kDpace, Recompute::kAttention},
        {"block_of_two", {kFull}, 2},
    };
}

DraftSpec spec_of(const Scenario& scenario) {
    DraftSpec spec = toy_spec(scenario.layers, scenario.block_size);
    spec.alignment_shift = scenario.shift;
    return spec;
}

DraftStepSettings settings_of(const Scenario& scenario, std::int64_t chunk = 7) {
    DraftStepSettings settings;
    settings.max_tokens = 40;
    settings.max_anchors = scenario.anchors;
    settings.loss_chunk = chunk;
    settings.loss = scenario.loss;
    settings.weighting = scenario.weighting;
    settings.dpace_alpha = 0.3;
    settings.recompute = scenario.recompute;
    return settings;
}

PackedBatch ragged_batch() { return pack({{13, 4}, {3, 0}, {1, 0}, {17, 6}}, 37); }

AnchorSet drawn(const PackedBatch& batch, const DraftSpec& spec, std::int64_t max_anchors, Weighting weighting = Weighting::kDecay) {
    AnchorSettings settings;
    settings.max_anchors = max_anchors;
    settings.seed = 3;
    settings.uniform_weights = weighting == Weighting::kDpace;
    AnchorSet anchors;
    draw_anchors(batch, spec, settings, {34}, anchors);
    return anchors;
}

double alpha_of(const Scenario& scenario) { return scenario.weighting == Weighting::kDpace ? 0.3 : -1.0; }

// The reference's loss as a function of the weights in `weights`.
template <typename T>
T reference_loss(const DraftCase& c, const Scenario& scenario, const ref::DraftWeightsRef<T>& weights, const ref::DraftFrozenRef& frozen,
                 const PackedBatch& batch, const AnchorSet& anchors) {
    const std::vector<T> hidden = draft_hidden(c.spec(), weights, frozen, batch.position, anchors);
    return draft_loss(c.spec(), frozen, anchors, hidden, scenario.loss == LossKind::kKl, alpha_of(scenario));
}

class DraftStepScenario : public ::testing::TestWithParam<Scenario> {};

TEST_P(DraftStepScenario, MatchesTheReference) {
    const Scenario& scenario = GetParam();
    DraftCase c(spec_of(scenario), settings_of(scenario));
    const PackedBatch batch = ragged_batch();
    const AnchorSet anchors = drawn(batch, c.spec(), scenario.anchors, scenario.weighting);
    ASSERT_GT(anchors.num_live, 3);
    const ToyFeatures features = toy_features(c.spec(), batch.tokens());
    const ref::DraftFrozenRef frozen = reference_frozen(c.model(), features.view(), c.target_head());

    c.poison();
    const Tensor hidden = c.step().forward(c.context(), c.model(), batch, features.view(), anchors);
    const auto plain = reference_weights<double>(c.model().weights, [](double v) { return v; });
    EXPECT_TRUE(close(hidden, draft_hidden(c.spec(), plain, frozen, batch.position, anchors), kModelF32));
    const LossStatistics statistics = c.loss(features.view(), anchors);
    c.step().backward(c.context(), c.model(), features.view(), anchors, c.gradients());

    Tape::current().clear();
    const auto recorded = reference_weights<Recorded>(c.model().weights, [](double v) { return Recorded::variable(v); });
    const Recorded loss = reference_loss(c, scenario, recorded, frozen, batch, anchors);
    EXPECT_TRUE(close(std::span<const double>(&statistics.loss_sum, 1), std::span<const double>(&loss.value, 1), kModelF32));
    const std::vector<double> slopes = Tape::current().derivatives(loss.node);
    std::size_t variable = 0;  // variables were made in the order of named_tensors, one after another
    for (const NamedTensor& entry : named_tensors(c.gradients())) {
        const auto count = static_cast<std::size_t>(entry.tensor.elements());
        const std::vector<double> expected(slopes.begin() + static_cast<std::ptrdiff_t>(variable),
                                           slopes.begin() + static_cast<std::ptrdiff_t>(variable + count));
        EXPECT_TRUE(close(entry.tensor, expected, kGradientF32)) << entry.name;
        variable += count;
    }
}

// The recorded derivatives themselves, against central differences of the plain double program at a few weights of every tensor.
TEST_P(DraftStepScenario, ReferenceMatchesFiniteDifferences) {
    const Scenario& scenario = GetParam();
    DraftCase c(spec_of(scenario), settings_of(scenario));
    const PackedBatch batch = ragged_batch();
    const AnchorSet anchors = drawn(batch, c.spec(), 4, scenario.weighting);
    const ToyFeatures features = toy_features(c.spec(), batch.tokens());
    const ref::DraftFrozenRef frozen = reference_frozen(c.model(), features.view(), c.target_head());
    if (scenario.weighting == Weighting::kDpace) {
        GTEST_SKIP()
            << "D-PACE's factors are detached: constants to the derivative, but not to a difference; the decay scenarios cover the code";
    }
    Tape::current().clear();
    const auto recorded = reference_weights<Recorded>(c.model().weights, [](double v) { return Recorded::variable(v); });
    const Recorded loss = reference_loss(c, scenario, recorded, frozen, batch, anchors);
    const std::vector<double> slopes = Tape::current().derivatives(loss.node);

    std::vector<double> differences;
    std::vector<double> expected;
    std::size_t variable = 0;
    for (const NamedTensor& entry : named_tensors(c.model().weights)) {
        const auto count = static_cast<std::size_t>(entry.tensor.elements());
        for (const std::size_t pick : {std::size_t{0}, count / 2}) {
            constexpr double kStep = 1e-5;
            double side[2];
            for (int s = 0; s < 2; ++s) {
                std::size_t at = 0;
                const auto moved = reference_weights<double>(
                    c.model().weights, [&](double v) { return at++ == variable + pick ? v + (s == 0 ? kStep : -kStep) : v; });
                side[s] = reference_loss(c, scenario, moved, frozen, batch, anchors);
            }
            differences.push_back((side[0] - side[1]) / (2 * kStep));
            expected.push_back(slopes[variable + pick]);
        }
        variable += count;
    }
    EXPECT_TRUE(close(std::span<const double>(differences), std::span<const double>(expected), kGradientF32));
}

INSTANTIATE_TEST_SUITE_P(All, DraftStepScenario, ::testing::ValuesIn(scenarios()),
                         [](const auto& instance) { return std::string(instance.param.name); });

struct Outcome {
    LossStatistics statistics;
    std::vector<std::vector<double>> gradients;
};

Outcome run_once(const Scenario& scenario, const PackedBatch& batch, const TargetFeatures& features, std::int64_t chunk) {
    DraftCase c(spec_of(scenario), settings_of(scenario, chunk));
    c.poison();
    Outcome outcome;
    outcome.statistics = c.run(batch, features, drawn(batch, c.spec(), scenario.anchors, scenario.weighting));
    outcome.gradients = gradient_values(c.gradients());
    return outcome;
}

void expect_equal_outcome(const Outcome& got, const Outcome& expected, Tolerance tolerance) {
    EXPECT_TRUE(
        close(std::span<const double>(&got.statistics.loss_sum, 1), std::span<const double>(&expected.statistics.loss_sum, 1), tolerance));
    EXPECT_TRUE(close(std::span<const double>(&got.statistics.weight_sum, 1), std::span<const double>(&expected.statistics.weight_sum, 1),
                      tolerance));
    ASSERT_EQ(got.gradients.size(), expected.gradients.size());
    for (std::size_t i = 0; i < got.gradients.size(); ++i) {
        EXPECT_TRUE(close(std::span<const double>(got.gradients[i]), std::span<const double>(expected.gradients[i]), tolerance)) << i;
    }
}

// A memory knob, not a knob of the answer.
TEST(DraftStep, AnyLossChunkGivesTheSame) {
    const PackedBatch batch = ragged_batch();
    for (const auto& [loss, weighting] :
         {std::pair{LossKind::kCrossEntropy, Weighting::kDpace}, std::pair{LossKind::kKl, Weighting::kDecay}}) {
        Scenario scenario{"chunks", {kFull, sliding(6)}, 4, 0, loss, weighting, Recompute::kNone, 30};
        const ToyFeatures features = toy_features(spec_of(scenario), batch.tokens());
        const Outcome whole = run_once(scenario, batch, features.view(), 1000);
        for (const std::int64_t chunk : {1, 7, 32, 100}) {
            SCOPED_TRACE(chunk);
            expect_equal_outcome(run_once(scenario, batch, features.view(), chunk), whole, kChunkF32);
        }
    }
}

TEST(DraftStep, RecomputationGivesTheSameBits) {
    const PackedBatch batch = ragged_batch();
    Scenario scenario{"recompute", {kFull, sliding(6), kFull}};
    const ToyFeatures features = toy_features(spec_of(scenario), batch.tokens());
    const Outcome kept = run_once(scenario, batch, features.view(), 7);
    for (const Recompute recompute : {Recompute::kAttention, Recompute::kLayer}) {
        scenario.recompute = recompute;
        EXPECT_EQ(run_once(scenario, batch, features.view(), 7).gradients, kept.gradients);
    }
}

// Nothing reads memory that nobody wrote: buffers and scratch full of NaN give the bits that zeros give, at lengths that fill no tile.
TEST(DraftStep, WhatMemoryHeldBeforeDoesNotMatter) {
    const PackedBatch batch = ragged_batch();
    for (const Recompute recompute : {Recompute::kNone, Recompute::kAttention, Recompute::kLayer}) {
        Scenario scenario{"fill", {kFull, sliding(6)}, 5, 0, LossKind::kKl, Weighting::kDpace, recompute};
        const ToyFeatures features = toy_features(spec_of(scenario), batch.tokens());
        std::vector<std::vector<std::vector<double>>> gradients;
        for (const unsigned char byte : {0x00, 0xff}) {
            DraftCase c(spec_of(scenario), settings_of(scenario));
            c.fill(byte);
            c.run(batch, features.view(), drawn(batch, c.spec(), scenario.anchors, scenario.weighting));
            gradients.push_back(gradient_values(c.gradients()));
        }
        EXPECT_EQ(gradients[0], gradients[1]);
    }
}

TEST(DraftStep, SameInputSameBits) {
    const PackedBatch batch = ragged_batch();
    const Scenario scenario{"twice", {kFull, sliding(6)}};
    const ToyFeatures features = toy_features(spec_of(scenario), batch.tokens());
    EXPECT_EQ(run_once(scenario, batch, features.view(), 7).gradients, run_once(scenario, batch, features.view(), 7).gradients);
}

Tensor rows_of(const Tensor& tensor, const PackedBatch& batch, std::size_t document) {
    return tensor.slice_rows(batch.document_begin[document], batch.document_begin[document + 1] - batch.document_begin[document]);
}

// Hidden states of a document's blocks, and the sum of gradients over documents, equal those of the documents alone; and any split of the
// same documents over micro-batches gives the same accumulated gradient.
TEST(DraftStep, PackedEqualsAlone) {
    const DraftSpec spec = toy_spec({kFull, sliding(6)});
    const PackedBatch batch = ragged_batch();
    const ToyFeatures features = toy_features(spec, batch.tokens());
    DraftStepSettings settings;
    settings.max_tokens = 40;
    settings.max_anchors = 40;
    AnchorSettings all;
    all.max_anchors = 40;
    AnchorSet anchors;

    DraftCase packed(spec, settings);
    packed.poison();
    draw_anchors(batch, spec, all, {}, anchors);
    const std::vector<double> hidden = to_double(packed.step().forward(packed.context(), packed.model(), batch, features.view(), anchors));
    const LossStatistics together = packed.run(batch, features.view(), anchors);

    DraftCase alone(spec, settings);
    alone.poison();
    alone.step().clear_sums(alone.context());
    LossStatistics sum;
    std::vector<double> hidden_alone;
    for (std::size_t d = 0; d < 4; ++d) {
        const PackedBatch document = document_of(batch, d);
        const TargetFeatures part{rows_of(features.taps, batch, d), rows_of(features.final_state, batch, d)};
        draw_anchors(document, spec, all, {}, anchors);
        const Tensor states = alone.step().forward(alone.context(), alone.model(), document, part, anchors);
        const std::vector<double> values = to_double(states);
        hidden_alone.insert(hidden_alone.end(), values.begin(), values.end());
        sum = alone.accumulate(document, part, anchors);
    }
    EXPECT_TRUE(close(std::span<const double>(hidden_alone), std::span<const double>(hidden), kChunkF32));
    expect_equal_outcome({sum, gradient_values(alone.gradients())}, {together, gradient_values(packed.gradients())}, kChunkF32);
    EXPECT_EQ(sum.slot_count, together.slot_count);
    EXPECT_EQ(sum.slot_correct, together.slot_correct);
    EXPECT_EQ(sum.accepted_sum, together.accepted_sum);
    EXPECT_EQ(sum.anchors, together.anchors);
}

// A micro-batch in which nothing is supervised adds nothing to the others of its step.
TEST(DraftStep, AnUnsupervisedMicroBatchLeavesTheOthersAlone) {
    const Scenario scenario{"unsupervised", {kFull, sliding(6)}};
    const PackedBatch batch = ragged_batch();
    PackedBatch silent = batch;
    std::fill(silent.loss_mask.begin(), silent.loss_mask.end(), std::uint8_t{0});
    const ToyFeatures features = toy_features(spec_of(scenario), batch.tokens());
    const auto anchors_of = [&](const PackedBatch& of) { return drawn(of, spec_of(scenario), scenario.anchors); };
    ASSERT_EQ(anchors_of(silent).num_live, 0);
    DraftCase alone(spec_of(scenario), settings_of(scenario)), both(spec_of(scenario), settings_of(scenario));
    alone.poison();
    both.poison();
    const LossStatistics expected = alone.run(batch, features.view(), anchors_of(batch));
    both.run(silent, features.view(), anchors_of(silent));
    const LossStatistics sum = both.accumulate(batch, features.view(), anchors_of(batch));
    EXPECT_EQ(sum.loss_sum, expected.loss_sum);
    EXPECT_EQ(sum.weight_sum, expected.weight_sum);
    EXPECT_EQ(gradient_values(both.gradients()), gradient_values(alone.gradients()));
}

TEST(DraftStep, AnySplitOfAccumulationGivesTheSameGradient) {
    const DraftSpec spec = toy_spec({sliding(6), kFull});
    std::vector<ToyDocument> lengths;
    for (std::int64_t d = 0; d < 8; ++d) lengths.push_back({5 + d % 3, d % 2});
    const PackedBatch batch = pack(lengths, spec.vocabulary);
    const ToyFeatures features = toy_features(spec, batch.tokens());
    DraftStepSettings settings;
    settings.max_tokens = 64;
    settings.max_anchors = 64;
    AnchorSettings all;
    all.max_anchors = 64;
    std::vector<Outcome> outcomes;
    for (const std::size_t micro_batches : {1U, 2U, 4U}) {
        DraftCase c(spec, settings);
        c.poison();
        c.step().clear_sums(c.context());
        LossStatistics sum;
        const std::size_t each = 8 / micro_batches;
        for (std::size_t m = 0; m < micro_batches; ++m) {
            PackedBatch part;
            const std::int32_t begin = batch.document_begin[m * each];
            const std::int32_t end = batch.document_begin[(m + 1) * each];
            for (std::int32_t row = begin; row < end; ++row) {
                const auto at = static_cast<std::size_t>(row);
                part.ids.push_back(batch.ids[at]);
                part.loss_mask.push_back(batch.loss_mask[at]);
                part.position.push_back(batch.position[at]);
                part.document.push_back(batch.document[at] - static_cast<std::int32_t>(m * each));
            }
            for (std::size_t d = 0; d <= each; ++d) part.document_begin.push_back(batch.document_begin[m * each + d] - begin);
            AnchorSet anchors;
            draw_anchors(part, spec, all, {}, anchors);
            sum = c.accumulate(part, {features.taps.tensor().slice_rows(begin, end - begin), Tensor{}}, anchors);
        }
        outcomes.push_back({sum, gradient_values(c.gradients())});
    }
    expect_equal_outcome(outcomes[1], outcomes[0], kChunkF32);
    expect_equal_outcome(outcomes[2], outcomes[0], kChunkF32);
}

TEST(DraftStep, NothingToLearnGivesZeroLossAndGradients) {
    const DraftSpec spec = toy_spec();
    DraftStepSettings settings;
    settings.max_tokens = 40;
    settings.max_anchors = 8;
    AnchorSettings anchor_settings;
    anchor_settings.max_anchors = 8;
    DraftCase c(spec, settings);
    c.poison();
    AnchorSet anchors;
    // No eligible position; blocks that are live but have no label; an empty micro-batch.
    const PackedBatch prompts = pack({{9, 9}, {4, 4}}, spec.vocabulary);
    const ToyFeatures features = toy_features(spec, prompts.tokens());
    std::vector<std::string> ready;
    const auto collect = [&](const std::string& name) { ready.push_back(name); };
    for (const std::vector<std::int32_t>& rows : {std::vector<std::int32_t>{}, std::vector<std::int32_t>{2, 8, 12}}) {
        place_anchors(prompts, spec, anchor_settings, rows, anchors);
        ready.clear();
        c.step().forward(c.context(), c.model(), prompts, features.view(), anchors);
        const LossStatistics statistics = c.loss(features.view(), anchors);
        c.step().backward(c.context(), c.model(), features.view(), anchors, c.gradients(), collect);
        EXPECT_EQ(statistics.loss_sum, 0.0);
        EXPECT_EQ(statistics.weight_sum, 0.0);
        EXPECT_EQ(ready.size(), named_tensors(c.gradients()).size());
        for (const std::vector<double>& gradient : gradient_values(c.gradients())) {
            EXPECT_TRUE(std::all_of(gradient.begin(), gradient.end(), [](double g) { return g == 0.0; }));
        }
    }
    PackedBatch nothing;
    nothing.document_begin = {0};
    draw_anchors(nothing, spec, anchor_settings, {}, anchors);
    EXPECT_EQ(c.run(nothing, {features.taps.tensor().slice_rows(0, 0), Tensor{}}, anchors).loss_sum, 0.0);
}

// Which context rows move which blocks: every row before the anchor, of its own document and inside the window of some layer; never another.
// The order of the anchors does not matter, and neither do overlapping blocks.
void expect_influence(const std::vector<DraftLayerSpec>& layers, const std::vector<std::int32_t>& rows) {
    const DraftSpec spec = toy_spec(layers, 8);
    const PackedBatch batch = pack({{64, 0}, {20, 0}}, spec.vocabulary);
    DraftStepSettings settings;
    settings.max_tokens = 90;
    settings.max_anchors = 8;
    AnchorSettings anchor_settings;
    anchor_settings.max_anchors = 8;
    AnchorSet anchors;
    place_anchors(batch, spec, anchor_settings, rows, anchors);
    DraftCase c(spec, settings);
    const ToyFeatures features = toy_features(spec, batch.tokens());
    const std::vector<double> before = to_double(c.step().forward(c.context(), c.model(), batch, features.view(), anchors));
    const auto block_elements = static_cast<std::ptrdiff_t>(spec.block_size * spec.hidden);
    for (std::int64_t row = 0; row < batch.tokens(); ++row) {
        ToyFeatures moved = toy_features(spec, batch.tokens());
        float* values = moved.taps.tensor().slice_rows(row, 1).f32();
        for (std::int64_t i = 0; i < moved.taps.tensor().row_elements(); ++i) values[i] = -values[i] + 1.0F;
        const std::vector<double> after = to_double(c.step().forward(c.context(), c.model(), batch, moved.view(), anchors));
        for (std::size_t b = 0; b < rows.size(); ++b) {
            bool visible = false;
            for (const DraftLayerSpec& layer : layers) {
                // The first slot reaches furthest back.
                const std::int64_t first =
                    layer.window > 0 ? std::max<std::int64_t>(anchors.begin_row[b], rows[b] - (layer.window - 1)) : anchors.begin_row[b];
                visible = visible || (row >= first && row < rows[b]);
            }
            const auto at = static_cast<std::ptrdiff_t>(b) * block_elements;
            const bool changed = !std::equal(before.begin() + at, before.begin() + at + block_elements, after.begin() + at);
            EXPECT_EQ(changed, visible) << "row " << row << ", anchor " << rows[b];
        }
    }
}

TEST(DraftStepInfluence, EndsBeforeTheAnchor) { expect_influence({kFull, kFull}, {12, 40, 10, 13, 64, 70}); }
TEST(DraftStepInfluence, EndsAtTheWindow) { expect_influence({sliding(16), sliding(16)}, {10, 12, 13, 40, 75}); }
TEST(DraftStepInfluence, OfTheWidestLayerCounts) { expect_influence({sliding(9), sliding(16)}, {30, 31, 64, 83}); }

// Within a sliding layer every slot has its own edge: row anchor - window + 1 + k is the first that slot k sees.
TEST(DraftStepInfluence, EachSlotHasItsOwnEdge) {
    const DraftSpec spec = toy_spec({sliding(16)}, 8);
    const PackedBatch batch = pack({{64, 0}}, spec.vocabulary);
    DraftStepSettings settings;
    settings.max_tokens = 64;
    settings.max_anchors = 1;
    AnchorSettings anchor_settings;
    anchor_settings.max_anchors = 1;
    AnchorSet anchors;
    place_anchors(batch, spec, anchor_settings, {40}, anchors);
    DraftCase c(spec, settings);
    const ToyFeatures features = toy_features(spec, batch.tokens());
    const std::vector<double> before = to_double(c.step().forward(c.context(), c.model(), batch, features.view(), anchors));
    for (std::int64_t row = 20; row < 48; ++row) {
        ToyFeatures moved = toy_features(spec, batch.tokens());
        moved.taps.tensor().slice_rows(row, 1).f32()[3] += 5.0F;
        const std::vector<double> after = to_double(c.step().forward(c.context(), c.model(), batch, moved.view(), anchors));
        for (std::int64_t k = 0; k < 8; ++k) {
            const auto at = static_cast<std::ptrdiff_t>(k * spec.hidden);
            const bool changed = !std::equal(before.begin() + at, before.begin() + at + spec.hidden, after.begin() + at);
            EXPECT_EQ(changed, row >= 40 + k - 15 && row < 40) << "row " << row << ", slot " << k;
        }
    }
}

TEST(DraftStep, TwoHundredStepsFitOneMicroBatch) {
    const DraftSpec spec = toy_spec({sliding(6), kFull});
    const PackedBatch batch = pack({{18, 4}, {12, 3}}, spec.vocabulary);
    const ToyFeatures features = toy_features(spec, batch.tokens());
    DraftStepSettings settings;
    settings.max_tokens = 32;
    settings.max_anchors = 12;
    DraftCase c(spec, settings);
    const AnchorSet anchors = drawn(batch, spec, 12);
    const double rate = 0.02;
    double first = 0;
    double last = std::numeric_limits<double>::quiet_NaN();
    std::vector<std::vector<double>> velocity = gradient_values(c.gradients());
    for (int step = 0; step < 200; ++step) {
        c.poison();
        const LossStatistics statistics = c.run(batch, features.view(), anchors);
        last = statistics.loss_sum / statistics.weight_sum;
        if (step == 0) first = last;
        const auto weights = named_tensors(c.model().weights);
        const auto gradients = named_tensors(c.gradients());
        for (std::size_t t = 0; t < weights.size(); ++t) {
            for (std::int64_t i = 0; i < weights[t].tensor.elements(); ++i) {
                double& v = velocity[t][static_cast<std::size_t>(i)];
                v = 0.9 * v + static_cast<double>(gradients[t].tensor.f32()[i]) / statistics.weight_sum;
                weights[t].tensor.f32()[i] -= static_cast<float>(rate * v);
            }
        }
        if (step < 199) continue;
        EXPECT_EQ(statistics.accepted_sum, std::accumulate(statistics.slot_count.begin(), statistics.slot_count.end(), 0.0));
    }
    EXPECT_GT(first, std::log(37.0) / 2);
    EXPECT_LT(last, first / 20);
}

TEST(DraftStep, ADocumentBeyondTheDraftersPositionsIsRefused) {
    DraftSpec spec = toy_spec();
    spec.max_positions = 16;
    const PackedBatch batch = pack({{17, 2}}, spec.vocabulary);
    DraftStepSettings settings;
    settings.max_tokens = 32;
    settings.max_anchors = 4;
    DraftCase c(spec, settings);
    const ToyFeatures features = toy_features(spec, batch.tokens());
    EXPECT_THROW(c.step().forward(c.context(), c.model(), batch, features.view(), drawn(batch, spec, 4)), Error);
}

}  // namespace
}  // namespace dflash::testing
