// SPDX-License-Identifier: MIT
// The law that ties training to decoding: what the drafter proposes at each verify step of a text is what the training forward predicts at
// that anchor over the finished text, token for token. Alignment, rotation, window, mask and caches all have to agree for that.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <string>

#include "generate/tiny_decoder.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "support/device_case.h"
#include "target/target_model.h"
#include "tensor/buffer.h"

namespace dflash {
namespace {

using testing::golden_texts;
using testing::packed_batch;
using testing::set_values;
using testing::tiny_draft_spec;
using testing::tiny_folder;
using testing::TinyDecoder;
using testing::values_of;
using Tokens = std::vector<std::int32_t>;

constexpr std::int64_t kNewTokens = 80;
constexpr std::int64_t kMaxTokens = 160;
// The two best logits may change places when they are closer than this: the paths sum in different orders. In bf16: this many times the noise of a
// whole model, four of its standard deviations; a token that has nothing to do with the best one is about twenty times further off.
constexpr float kTieGap = 1e-3F;
constexpr double kNoise = 4;

enum class Layers { kFull, kSliding, kSlidingNoncausal, kMixed };

struct ParityCase {
    const char* name;
    const char* target;
    std::int64_t block_size;
    std::int64_t shift;
    Layers layers;
    bool trained;
};

DraftSpec spec_of(const ParityCase& c) {
    DraftSpec spec = tiny_draft_spec(read_target_config(tiny_folder(c.target)), c.block_size, c.shift);
    const std::int64_t window = 24;  // well inside the text, so that its edge matters
    const DraftLayerSpec full{DraftLayerKind::kFullAttention, 0, false};
    const DraftLayerSpec sliding{DraftLayerKind::kSlidingAttention, window, c.layers != Layers::kSlidingNoncausal};
    spec.layers[0] = c.layers == Layers::kFull ? full : sliding;
    spec.layers[1] = c.layers == Layers::kFull || c.layers == Layers::kMixed ? full : sliding;
    return spec;
}

DraftStepSettings step_settings(Device device) {
    return {.max_tokens = kMaxTokens, .max_anchors = kNewTokens, .loss_chunk = 256, .device = device};
}

TargetForwardSettings forward_settings(const DraftSpec& spec, Device device) {
    return {.max_tokens = kMaxTokens, .taps = spec.taps, .want_final = false, .device = device};
}

std::vector<BufferSpec> training_buffers(const TargetConfig& target, const DraftSpec& spec, Device device) {
    const Lifetime always;
    const std::vector<int> no_phases(spec.layers.size(), 0);
    DraftPhases phases;
    phases.forward = phases.backward = no_phases;
    std::vector<BufferSpec> buffers = target_forward_buffers(target, forward_settings(spec, device), always, always, always);
    const auto add = [&](const std::vector<BufferSpec>& part) { buffers.insert(buffers.end(), part.begin(), part.end()); };
    add(draft_step_buffers(spec, step_settings(device), phases));
    add(draft_tensor_buffers(spec, "draft.gradient", Category::kGradients, always));
    return buffers;
}

// Decoding and training of one drafter in one arena.
class ParityFixture {
public:
    ParityFixture(const ParityCase& c, Device device)
        : spec_(spec_of(c)),
          tiny_(c.target, spec_, {.max_tokens = kMaxTokens, .max_prompt = 128, .device = device},
                training_buffers(read_target_config(tiny_folder(c.target)), spec_, device)),
          features_model_(tiny_.target, tiny_.weights, forward_settings(spec_, device), *tiny_.arena),
          step_(spec_, step_settings(device), *tiny_.arena),
          generator_(tiny_.make_generator()) {}

    const DraftSpec& spec() const { return spec_; }

    struct Step {
        std::int32_t position;
        std::int32_t anchor;
        Tokens drafts;
    };
    // Decodes greedily; `steps` =: what was proposed.
    GenerateResult decode(const Tokens& prompt, std::vector<Step>& steps) {
        GenerateSettings settings;
        settings.max_new_tokens = kNewTokens;
        settings.on_step = [&](const VerifyStep& step) {
            if (step.drafts.empty()) return;
            steps.push_back({static_cast<std::int32_t>(step.anchor_position), step.anchor, {step.drafts.begin(), step.drafts.end()}});
        };
        return generator_->generate(tiny_.context, prompt, settings, true);
    }

    // Logits (anchors * W, V) of the training forward over the text.
    std::vector<float> training_logits(const Tokens& text, const std::vector<std::int32_t>& rows) {
        place(text, rows);
        const TargetFeatures features = features_model_.forward(tiny_.context, batch_);
        const Tensor hidden = step_.forward(tiny_.context, *tiny_.draft, batch_, features, anchors_);
        const DeviceBuffer logits(tiny_.context.device(), DType::kF32, {hidden.rows(), spec_.vocabulary});
        linear_forward(tiny_.context, {hidden, tiny_.draft->head, logits});
        return values_of(tiny_.context, logits);
    }

    // Descends along the sign of the gradient on this text's own tokens, enough that drafts are often right.
    void train(const Tokens& text, std::int64_t first_row, int steps) {
        std::vector<std::int32_t> rows;
        for (std::int64_t row = first_row; row < std::ssize(text) - 1; ++row) rows.push_back(static_cast<std::int32_t>(row));
        place(text, rows);
        const DraftTensors gradients = bind_draft_tensors(spec_, "draft.gradient", *tiny_.arena);
        const TargetFeatures features = features_model_.forward(tiny_.context, batch_);
        for (int i = 0; i < steps; ++i) {
            for (const NamedTensor& g : named_tensors(gradients)) fill_zero(tiny_.context, g.tensor);
            step_.forward(tiny_.context, *tiny_.draft, batch_, features, anchors_);
            step_.loss(tiny_.context, *tiny_.draft, features, anchors_, {}, true);
            step_.backward(tiny_.context, *tiny_.draft, features, anchors_, gradients);
            descend(gradients);
        }
    }

private:
    void place(const Tokens& text, const std::vector<std::int32_t>& rows) {
        batch_ = packed_batch({text});
        place_anchors(batch_, spec_, {.max_anchors = kNewTokens}, rows, anchors_);
    }
    void descend(const DraftTensors& gradients) {
        const float rate = 1e-3F;
        const std::vector<NamedTensor> weights = named_tensors(tiny_.draft->weights);
        const std::vector<NamedTensor> slopes = named_tensors(gradients);
        for (std::size_t t = 0; t < weights.size(); ++t) {
            std::vector<float> w = values_of(tiny_.context, weights[t].tensor);
            const std::vector<float> g = values_of(tiny_.context, slopes[t].tensor);
            for (std::size_t i = 0; i < w.size(); ++i) w[i] -= g[i] > 0 ? rate : g[i] < 0 ? -rate : 0;
            set_values(tiny_.context, w, weights[t].tensor);
        }
    }

    DraftSpec spec_;
    TinyDecoder tiny_;
    TargetModel features_model_;
    DraftStep step_;
    std::unique_ptr<Generator> generator_;
    PackedBatch batch_;
    AnchorSet anchors_;
};

std::int32_t best_of(std::span<const float> row) {
    return static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}
double root_mean_square(std::span<const float> row) {
    double squares = 0;
    for (const float v : row) squares += static_cast<double>(v) * static_cast<double>(v);
    return std::sqrt(squares / static_cast<double>(row.size()));
}

class PathParity : public testing::DeviceCases<ParityCase> {};

TEST_P(PathParity, DraftsOfDecodingEqualThoseOfTheTrainingForward) {
    const ParityCase& c = c_;
    const bool exact = device().type == DeviceType::kCpu;
    ParityFixture fixture(c, device());
    const Tokens prompt = golden_texts(c.target)[1].prompt;
    std::vector<ParityFixture::Step> steps;
    GenerateResult result = fixture.decode(prompt, steps);
    Tokens text = prompt;
    text.insert(text.end(), result.output_ids.begin(), result.output_ids.end());
    if (c.trained) {
        fixture.train(text, std::ssize(prompt), 30);
        steps.clear();
        EXPECT_EQ(fixture.decode(prompt, steps).output_ids, result.output_ids);
        EXPECT_GT(steps.front().drafts.size(), 0U);
        // Steps that keep several drafts are what this case is for.
        EXPECT_LT(std::ssize(steps) * 3, kNewTokens * 2);
    }
    ASSERT_GT(steps.size(), 5U);

    std::vector<std::int32_t> rows;
    for (const auto& step : steps) {
        ASSERT_EQ(step.anchor, text[static_cast<std::size_t>(step.position)]);
        rows.push_back(step.position);
    }
    const std::vector<float> logits = fixture.training_logits(text, rows);
    const std::int64_t vocabulary = fixture.spec().vocabulary;
    std::int64_t compared = 0;
    std::int64_t ties = 0;
    for (std::size_t s = 0; s < steps.size(); ++s) {
        for (std::size_t i = 0; i < steps[s].drafts.size(); ++i) {
            const std::int64_t slot = fixture.spec().first_weighted_slot() + static_cast<std::int64_t>(i);
            const std::int64_t row = static_cast<std::int64_t>(s) * fixture.spec().block_size + slot;
            const std::span<const float> row_logits(logits.data() + row * vocabulary, static_cast<std::size_t>(vocabulary));
            const std::int32_t best = best_of(row_logits), draft = steps[s].drafts[i];
            const double gap = exact ? kTieGap : kNoise * tolerance(testing::kModelF32).relative_rms * root_mean_square(row_logits);
            ++compared;
            if (draft == best) continue;
            ++ties;
            ASSERT_LT(row_logits[static_cast<std::size_t>(best)] - row_logits[static_cast<std::size_t>(draft)], gap)
                << draft << " against " << best << " in step " << s << " at position " << steps[s].position << ", slot " << slot;
        }
    }
    EXPECT_GT(compared, (exact ? 20 : 3) * ties) << "too many ties to tell";
}

constexpr ParityCase kCases[] = {
    {"DenseFull", "tiny-qwen3", 8, 0, Layers::kFull, false},
    {"DenseSliding", "tiny-qwen3", 8, 0, Layers::kSliding, false},
    {"DenseMixedShifted", "tiny-qwen3", 7, 1, Layers::kMixed, false},
    {"DenseTrained", "tiny-qwen3", 8, 0, Layers::kMixed, true},
    {"HybridFull", "tiny-qwen3.5", 16, 0, Layers::kFull, false},
    {"HybridSliding", "tiny-qwen3.5", 8, 0, Layers::kSliding, false},
    {"HybridSlidingNoncausal", "tiny-qwen3.5", 8, 0, Layers::kSlidingNoncausal, false},
    {"HybridMixedTrained", "tiny-qwen3.5", 8, 0, Layers::kMixed, true},
    {"HybridShiftedTrained", "tiny-qwen3.5", 8, 1, Layers::kMixed, true},
};
DFLASH_CASES_ON_EACH_DEVICE(Cases, PathParity, ::testing::ValuesIn(kCases));

}  // namespace
}  // namespace dflash
