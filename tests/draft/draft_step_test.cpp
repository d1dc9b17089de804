// SPDX-License-Identifier: MIT
// The whole step (forward, loss, backward) against the scalar reference in double, whose derivatives are recorded, not written by hand.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "draft/anchors.h"
#include "draft_case.h"
#include "support/close.h"
#include "support/device_case.h"
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

DraftStepSettings settings_of(const Scenario& scenario, Device device, std::int64_t chunk = 7) {
    DraftStepSettings settings{.max_tokens = 40, .max_anchors = scenario.anchors, .device = device};
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

// Of the gradients of matrices: what a run may choose.
std::vector<DType> gradient_dtypes(Device device) {
    if (device.type == DeviceType::kCpu) return {DType::kF32};
    return {DType::kBF16, DType::kF32};
}

double alpha_of(const Scenario& scenario) { return scenario.weighting == Weighting::kDpace ? 0.3 : -1.0; }

class DraftStepScenario : public DeviceCases<Scenario> {
protected:
    PackedBatch batch_ = ragged_batch();
};

// Loss and derivatives of the recorded program.
struct RecordedOutcome {
    double loss = 0;
    std::vector<double> hidden;
    std::vector<std::vector<double>> gradients;
};
RecordedOutcome record(const DraftCase& c, const Scenario& scenario, const ref::DraftFrozenRef& frozen, const PackedBatch& batch,
                       const AnchorSet& anchors, bool imitate_bf16 = false) {
    Tape::current().clear(imitate_bf16);
    const auto weights = reference_weights<Recorded>(c.context(), c.model().weights, [](double v) { return Recorded::variable(v); });
    const std::vector<Recorded> hidden = draft_hidden(c.spec(), weights, frozen, batch.position, anchors);
    const Recorded loss = draft_loss(c.spec(), frozen, anchors, hidden, scenario.loss == LossKind::kKl, alpha_of(scenario));
    RecordedOutcome outcome{.loss = loss.value, .hidden = {}, .gradients = {}};
    for (const Recorded& value : hidden) outcome.hidden.push_back(value.value);
    const std::vector<double> slopes = Tape::current().derivatives(loss.node);
    auto next = slopes.begin();  // variables were made in the order of named_tensors, one after another
    for (const NamedTensor& entry : named_tensors(c.gradients())) {
        outcome.gradients.emplace_back(next, next + entry.tensor.elements());
        next += entry.tensor.elements();
        if (imitate_bf16 && entry.tensor.dtype == DType::kBF16) {
            for (double& value : outcome.gradients.back()) value = Tape::to_bf16(value);
        }
    }
    return outcome;
}

TEST_P(DraftStepScenario, MatchesTheReference) {
    for (const DType matrices : gradient_dtypes(device())) {
        DraftCase c(spec_of(c_), settings_of(c_, device()), matrices);
        const AnchorSet anchors = drawn(batch_, c.spec(), c_.anchors, c_.weighting);
        ASSERT_GT(anchors.num_live, 3);
        const ToyFeatures features(c.context(), c.spec(), batch_.tokens());
        const ref::DraftFrozenRef frozen = c.frozen(features.view());

        c.poison();
        const std::vector<double> hidden = c.hidden(batch_, features.view(), anchors);
        const LossStatistics statistics = c.loss(features.view(), anchors);
        c.step().backward(c.context(), c.model(), features.view(), anchors, c.gradients());
        const std::vector<std::vector<double>> gradients = c.gradient_values();

        const RecordedOutcome exact = record(c, c_, frozen, batch_, anchors);
        const auto compare = [&](std::span<const double> got, std::span<const double> wanted, std::span<const double> in_bf16,
                                 Tolerance bound) {
            return device().type == DeviceType::kCpu ? close(got, wanted, bound) : as_good_as_bf16(got, wanted, in_bf16);
        };
        const RecordedOutcome plain = record(c, c_, frozen, batch_, anchors, /*imitate_bf16=*/true);
        EXPECT_TRUE(compare(hidden, exact.hidden, plain.hidden, kModelF32));
        EXPECT_TRUE(compare({&statistics.loss_sum, 1}, {&exact.loss, 1}, {&plain.loss, 1}, kModelF32));
        const auto names = named_tensors(c.gradients());
        for (std::size_t t = 0; t < names.size(); ++t)
            EXPECT_TRUE(compare(gradients[t], exact.gradients[t], plain.gradients[t], kGradientF32)) << names[t].name;
    }
}

// To overwrite whatever gradients held is to add to zeros.
TEST_P(DraftStepScenario, OverwritesGradients) {
    const AnchorSet anchors = drawn(batch_, spec_of(c_), c_.anchors, c_.weighting);
    DraftCase c(spec_of(c_), settings_of(c_, device()));
    const ToyFeatures features(c.context(), c.spec(), batch_.tokens());
    c.run(batch_, features.view(), anchors);
    const std::vector<std::vector<double>> added = c.gradient_values();
    for (const NamedTensor& entry : named_tensors(c.gradients())) fill_bytes(c.context(), entry.tensor, 0xff);
    c.accumulate(batch_, features.view(), anchors, Write::kOverwrite);
    const std::vector<std::vector<double>> overwritten = c.gradient_values();
    for (std::size_t t = 0; t < added.size(); ++t)
        EXPECT_TRUE(close(std::span<const double>(overwritten[t]), std::span<const double>(added[t]), tolerance(kChunkF32)));
}

// The recorded derivatives themselves, against central differences of the plain double program at a few weights of every tensor.
// Without D-PACE, whose factors are constants to the derivative but not to a difference.
std::vector<Scenario> decay_scenarios() {
    std::vector<Scenario> kept = scenarios();
    std::erase_if(kept, [](const Scenario& scenario) { return scenario.weighting == Weighting::kDpace; });
    return kept;
}
class DraftReference : public ::testing::TestWithParam<Scenario> {};
TEST_P(DraftReference, MatchesFiniteDifferences) {
    const Scenario& scenario = GetParam();
    DraftCase c(spec_of(scenario), settings_of(scenario, Device{}));
    const PackedBatch batch = ragged_batch();
    const AnchorSet anchors = drawn(batch, c.spec(), 4, scenario.weighting);
    const ToyFeatures features(c.context(), c.spec(), batch.tokens());
    const ref::DraftFrozenRef frozen = c.frozen(features.view());
    const RecordedOutcome recorded = record(c, scenario, frozen, batch, anchors);
    std::vector<double> differences;
    std::vector<double> expected;
    std::size_t variable = 0;
    for (const std::vector<double>& slopes : recorded.gradients) {
        for (const std::size_t pick : {std::size_t{0}, slopes.size() / 2}) {
            constexpr double kStep = 1e-5;
            double side[2];
            for (int s = 0; s < 2; ++s) {
                std::size_t at = 0;
                const auto moved = reference_weights<double>(
                    c.context(), c.model().weights, [&](double v) { return at++ == variable + pick ? v + (s == 0 ? kStep : -kStep) : v; });
                const std::vector<double> hidden = draft_hidden(c.spec(), moved, frozen, batch.position, anchors);
                side[s] = draft_loss(c.spec(), frozen, anchors, hidden, scenario.loss == LossKind::kKl, alpha_of(scenario));
            }
            differences.push_back((side[0] - side[1]) / (2 * kStep));
            expected.push_back(slopes[pick]);
        }
        variable += slopes.size();
    }
    EXPECT_TRUE(close(std::span<const double>(differences), std::span<const double>(expected), kGradientF32));
}
INSTANTIATE_TEST_SUITE_P(All, DraftReference, ::testing::ValuesIn(decay_scenarios()),
                         [](const auto& instance) { return std::string(instance.param.name); });

struct Outcome {
    LossStatistics statistics;
    std::vector<std::vector<double>> gradients;
};

class DraftStepTest : public DeviceTest {
protected:
    DraftStepSettings room(std::int64_t tokens, std::int64_t anchors) const {
        return {.max_tokens = tokens, .max_anchors = anchors, .device = device()};
    }
    // Memory holds `before` in every byte.
    Outcome run_once(const Scenario& scenario, const PackedBatch& batch, std::int64_t chunk = 7, unsigned char before = 0xff) const {
        DraftCase c(spec_of(scenario), settings_of(scenario, device(), chunk));
        const ToyFeatures features(c.context(), c.spec(), batch.tokens());
        c.fill(before);
        Outcome outcome;
        outcome.statistics = c.run(batch, features.view(), drawn(batch, c.spec(), scenario.anchors, scenario.weighting));
        outcome.gradients = c.gradient_values();
        return outcome;
    }
    // The same computation cut differently.
    void expect_equal_outcome(const Outcome& got, const Outcome& expected) const {
        const auto agree = [&](std::span<const double> a, std::span<const double> b) { return close(a, b, tolerance(kChunkF32)); };
        EXPECT_TRUE(agree({&got.statistics.loss_sum, 1}, {&expected.statistics.loss_sum, 1}));
        EXPECT_TRUE(agree({&got.statistics.weight_sum, 1}, {&expected.statistics.weight_sum, 1}));
        ASSERT_EQ(got.gradients.size(), expected.gradients.size());
        for (std::size_t i = 0; i < got.gradients.size(); ++i) EXPECT_TRUE(agree(got.gradients[i], expected.gradients[i])) << i;
    }
};

// A memory knob, not a knob of the answer.
TEST_P(DraftStepTest, AnyLossChunkGivesTheSame) {
    const PackedBatch batch = ragged_batch();
    for (const auto& [loss, weighting] :
         {std::pair{LossKind::kCrossEntropy, Weighting::kDpace}, std::pair{LossKind::kKl, Weighting::kDecay}}) {
        Scenario scenario{"chunks", {kFull, sliding(6)}, 4, 0, loss, weighting, Recompute::kNone, 30};
        const Outcome whole = run_once(scenario, batch, 1000);
        for (const std::int64_t chunk : {1, 7, 32, 100}) {
            SCOPED_TRACE(chunk);
            expect_equal_outcome(run_once(scenario, batch, chunk), whole);
        }
    }
}

TEST_P(DraftStepTest, RecomputationGivesTheSameBits) {
    const PackedBatch batch = ragged_batch();
    Scenario scenario{"recompute", {kFull, sliding(6), kFull}};
    const Outcome kept = run_once(scenario, batch);
    for (const Recompute recompute : {Recompute::kAttention, Recompute::kLayer}) {
        scenario.recompute = recompute;
        EXPECT_EQ(run_once(scenario, batch).gradients, kept.gradients);
    }
}

// Nothing reads memory that nobody wrote: buffers and scratch full of NaN give the bits that zeros give, at lengths that fill no tile.
TEST_P(DraftStepTest, WhatMemoryHeldBeforeDoesNotMatter) {
    const PackedBatch batch = ragged_batch();
    for (const Recompute recompute : {Recompute::kNone, Recompute::kAttention, Recompute::kLayer}) {
        Scenario scenario{"fill", {kFull, sliding(6)}, 5, 0, LossKind::kKl, Weighting::kDpace, recompute};
        EXPECT_EQ(run_once(scenario, batch, 7, 0x00).gradients, run_once(scenario, batch, 7, 0xff).gradients);
    }
}

TEST_P(DraftStepTest, SameInputSameBits) {
    const PackedBatch batch = ragged_batch();
    const Scenario scenario{"twice", {kFull, sliding(6)}};
    EXPECT_EQ(run_once(scenario, batch).gradients, run_once(scenario, batch).gradients);
}

// Hidden states of a document's blocks, and the sum of gradients over documents, equal those of the documents alone; and any split of the
// same documents over micro-batches gives the same accumulated gradient.
TEST_P(DraftStepTest, PackedEqualsAlone) {
    const DraftSpec spec = toy_spec({kFull, sliding(6)});
    const PackedBatch batch = ragged_batch();
    AnchorSettings all;
    all.max_anchors = 40;
    AnchorSet anchors;

    DraftCase packed(spec, room(40, 40), DType::kF32);
    const ToyFeatures features(packed.context(), spec, batch.tokens());
    packed.poison();
    draw_anchors(batch, spec, all, {}, anchors);
    const std::vector<double> hidden = packed.hidden(batch, features.view(), anchors);
    const LossStatistics together = packed.run(batch, features.view(), anchors);

    DraftCase alone(spec, room(40, 40), DType::kF32);
    alone.poison();
    alone.step().clear_sums(alone.context());
    LossStatistics sum;
    std::vector<double> hidden_alone;
    for (std::size_t d = 0; d < 4; ++d) {
        const PackedBatch document = document_of(batch, d);
        const TargetFeatures part = features.rows(batch.document_begin[d], document.tokens());
        draw_anchors(document, spec, all, {}, anchors);
        const std::vector<double> values = alone.hidden(document, part, anchors);
        hidden_alone.insert(hidden_alone.end(), values.begin(), values.end());
        sum = alone.accumulate(document, part, anchors);
    }
    EXPECT_TRUE(close(std::span<const double>(hidden_alone), std::span<const double>(hidden), tolerance(kChunkF32)));
    expect_equal_outcome({sum, alone.gradient_values()}, {together, packed.gradient_values()});
    EXPECT_EQ(sum.slot_count, together.slot_count);
    EXPECT_EQ(sum.slot_correct, together.slot_correct);
    EXPECT_EQ(sum.accepted_sum, together.accepted_sum);
    EXPECT_EQ(sum.anchors, together.anchors);
}

// A micro-batch in which nothing is supervised adds nothing to the others of its step.
TEST_P(DraftStepTest, AnUnsupervisedMicroBatchLeavesTheOthersAlone) {
    const Scenario scenario{"unsupervised", {kFull, sliding(6)}};
    const PackedBatch batch = ragged_batch();
    PackedBatch silent = batch;
    std::fill(silent.loss_mask.begin(), silent.loss_mask.end(), std::uint8_t{0});
    const auto anchors_of = [&](const PackedBatch& of) { return drawn(of, spec_of(scenario), scenario.anchors); };
    ASSERT_EQ(anchors_of(silent).num_live, 0);
    DraftCase alone(spec_of(scenario), settings_of(scenario, device())), both(spec_of(scenario), settings_of(scenario, device()));
    const ToyFeatures features(alone.context(), alone.spec(), batch.tokens());
    alone.context().synchronize();
    alone.poison();
    both.poison();
    const LossStatistics expected = alone.run(batch, features.view(), anchors_of(batch));
    both.run(silent, features.view(), anchors_of(silent));
    const LossStatistics sum = both.accumulate(batch, features.view(), anchors_of(batch));
    EXPECT_EQ(sum.loss_sum, expected.loss_sum);
    EXPECT_EQ(sum.weight_sum, expected.weight_sum);
    EXPECT_EQ(both.gradient_values(), alone.gradient_values());
}

TEST_P(DraftStepTest, AnySplitOfAccumulationGivesTheSameGradient) {
    const DraftSpec spec = toy_spec({sliding(6), kFull});
    std::vector<ToyDocument> lengths;
    for (std::int64_t d = 0; d < 8; ++d) lengths.push_back({5 + d % 3, d % 2});
    const PackedBatch batch = pack(lengths, spec.vocabulary);
    AnchorSettings all;
    all.max_anchors = 64;
    std::vector<Outcome> outcomes;
    for (const std::size_t micro_batches : {1U, 2U, 4U}) {
        DraftCase c(spec, room(64, 64), DType::kF32);
        const ToyFeatures features(c.context(), spec, batch.tokens());
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
            sum = c.accumulate(part, features.rows(begin, end - begin), anchors);
        }
        outcomes.push_back({sum, c.gradient_values()});
    }
    expect_equal_outcome(outcomes[1], outcomes[0]);
    expect_equal_outcome(outcomes[2], outcomes[0]);
}

TEST_P(DraftStepTest, NothingToLearnGivesZeroLossAndGradients) {
    const DraftSpec spec = toy_spec();
    AnchorSettings anchor_settings;
    anchor_settings.max_anchors = 8;
    DraftCase c(spec, room(40, 8));
    c.poison();
    AnchorSet anchors;
    // No eligible position; blocks that are live but have no label; an empty micro-batch.
    const PackedBatch prompts = pack({{9, 9}, {4, 4}}, spec.vocabulary);
    const ToyFeatures features(c.context(), spec, prompts.tokens());
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
        for (const std::vector<double>& gradient : c.gradient_values()) {
            EXPECT_TRUE(std::all_of(gradient.begin(), gradient.end(), [](double g) { return g == 0.0; }));
        }
    }
    PackedBatch nothing;
    nothing.document_begin = {0};
    draw_anchors(nothing, spec, anchor_settings, {}, anchors);
    EXPECT_EQ(c.run(nothing, features.rows(0, 0), anchors).loss_sum, 0.0);
}

// Which context rows move which blocks: every row before the anchor, of its own document and inside the window of some layer; never another.
// The order of the anchors does not matter, and neither do overlapping blocks.
void expect_influence(Device device, const std::vector<DraftLayerSpec>& layers, const std::vector<std::int32_t>& rows) {
    const DraftSpec spec = toy_spec(layers, 8);
    const PackedBatch batch = pack({{64, 0}, {20, 0}}, spec.vocabulary);
    AnchorSettings anchor_settings;
    anchor_settings.max_anchors = 8;
    AnchorSet anchors;
    place_anchors(batch, spec, anchor_settings, rows, anchors);
    DraftCase c(spec, {.max_tokens = 90, .max_anchors = 8, .device = device});
    const ToyFeatures features(c.context(), spec, batch.tokens());
    const std::vector<double> before = c.hidden(batch, features.view(), anchors);
    const auto block_elements = static_cast<std::ptrdiff_t>(spec.block_size * spec.hidden);
    for (std::int64_t row = 0; row < batch.tokens(); ++row) {
        const ToyFeatures moved(c.context(), spec, batch.tokens(), [&](const Tensor& taps) {
            float* values = taps.slice_rows(row, 1).f32();
            for (std::int64_t i = 0; i < taps.row_elements(); ++i) values[i] = -values[i] + 1.0F;
        });
        const std::vector<double> after = c.hidden(batch, moved.view(), anchors);
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

class DraftStepInfluence : public DeviceTest {};
TEST_P(DraftStepInfluence, EndsBeforeTheAnchor) { expect_influence(device(), {kFull, kFull}, {12, 40, 10, 13, 64, 70}); }
TEST_P(DraftStepInfluence, EndsAtTheWindow) { expect_influence(device(), {sliding(16), sliding(16)}, {10, 12, 13, 40, 75}); }
TEST_P(DraftStepInfluence, OfTheWidestLayerCounts) { expect_influence(device(), {sliding(9), sliding(16)}, {30, 31, 64, 83}); }

// Within a sliding layer every slot has its own edge: row anchor - window + 1 + k is the first that slot k sees.
TEST_P(DraftStepInfluence, EachSlotHasItsOwnEdge) {
    const DraftSpec spec = toy_spec({sliding(16)}, 8);
    const PackedBatch batch = pack({{64, 0}}, spec.vocabulary);
    AnchorSettings anchor_settings;
    anchor_settings.max_anchors = 1;
    AnchorSet anchors;
    place_anchors(batch, spec, anchor_settings, {40}, anchors);
    DraftCase c(spec, {.max_tokens = 64, .max_anchors = 1, .device = device()});
    const ToyFeatures features(c.context(), spec, batch.tokens());
    const std::vector<double> before = c.hidden(batch, features.view(), anchors);
    for (std::int64_t row = 20; row < 48; ++row) {
        const ToyFeatures moved(c.context(), spec, batch.tokens(), [&](const Tensor& taps) { taps.slice_rows(row, 1).f32()[3] += 5.0F; });
        const std::vector<double> after = c.hidden(batch, moved.view(), anchors);
        for (std::int64_t k = 0; k < 8; ++k) {
            const auto at = static_cast<std::ptrdiff_t>(k * spec.hidden);
            const bool changed = !std::equal(before.begin() + at, before.begin() + at + spec.hidden, after.begin() + at);
            EXPECT_EQ(changed, row >= 40 + k - 15 && row < 40) << "row " << row << ", slot " << k;
        }
    }
}

TEST_P(DraftStepTest, TwoHundredStepsFitOneMicroBatch) {
    const DraftSpec spec = toy_spec({sliding(6), kFull});
    const PackedBatch batch = pack({{18, 4}, {12, 3}}, spec.vocabulary);
    DraftCase c(spec, room(32, 12), DType::kF32);
    const ToyFeatures features(c.context(), spec, batch.tokens());
    const AnchorSet anchors = drawn(batch, spec, 12);
    const double rate = 0.02;
    double first = 0;
    double last = std::numeric_limits<double>::quiet_NaN();
    std::vector<std::vector<double>> velocity = c.gradient_values();  // zeros
    std::vector<std::vector<double>> masters = tensor_values(c.context(), c.model().weights);
    for (int step = 0; step < 200; ++step) {
        c.poison();
        const LossStatistics statistics = c.run(batch, features.view(), anchors);
        last = statistics.loss_sum / statistics.weight_sum;
        if (step == 0) first = last;
        const auto weights = named_tensors(c.model().weights);
        const std::vector<std::vector<double>> gradients = c.gradient_values();
        for (std::size_t t = 0; t < weights.size(); ++t) {
            for (std::size_t i = 0; i < masters[t].size(); ++i) {
                velocity[t][i] = 0.9 * velocity[t][i] + gradients[t][i] / statistics.weight_sum;
                masters[t][i] -= rate * velocity[t][i];
            }
            set_values(c.context(), {masters[t].begin(), masters[t].end()}, weights[t].tensor);
        }
        if (step < 199) continue;
        EXPECT_EQ(statistics.accepted_sum, std::accumulate(statistics.slot_count.begin(), statistics.slot_count.end(), 0.0));
    }
    EXPECT_GT(first, std::log(37.0) / 2);
    EXPECT_LT(last, first / 20);
}

TEST_P(DraftStepTest, ADocumentBeyondTheDraftersPositionsIsRefused) {
    DraftSpec spec = toy_spec();
    spec.max_positions = 16;
    const PackedBatch batch = pack({{17, 2}}, spec.vocabulary);
    DraftCase c(spec, room(32, 4));
    const ToyFeatures features(c.context(), spec, batch.tokens());
    EXPECT_THROW(c.step().forward(c.context(), c.model(), batch, features.view(), drawn(batch, spec, 4)), Error);
}

DFLASH_CASES_ON_EACH_DEVICE(All, DraftStepScenario, ::testing::ValuesIn(scenarios()));
DFLASH_ON_EACH_DEVICE(DraftStepTest);
DFLASH_ON_EACH_DEVICE(DraftStepInfluence);

}  // namespace
}  // namespace dflash::testing
