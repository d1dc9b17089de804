// SPDX-License-Identifier: MIT
// A made-up drafter, micro-batch and target, with planned memory: what the tests of the step and of decoding start from.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "draft/draft_model.h"
#include "draft/ref/draft_ref.h"
#include "support/data.h"
#include "support/device_values.h"
#include "tensor/arena.h"
#include "tensor/working_dtype.h"

namespace dflash::testing {

constexpr DraftLayerSpec kFull{DraftLayerKind::kFullAttention, 0, false};
constexpr DraftLayerSpec sliding(std::int64_t window, bool causal = true) { return {DraftLayerKind::kSlidingAttention, window, causal}; }

inline DraftSpec toy_spec(std::vector<DraftLayerSpec> layers = {kFull, sliding(6)}, std::int64_t block_size = 4) {
    DraftSpec spec;
    spec.block_size = block_size;
    spec.layers = std::move(layers);
    spec.taps = {1, 3};
    spec.hidden = 16;
    spec.intermediate = 24;
    spec.heads = 4;
    spec.kv_heads = 2;
    spec.head_dim = 8;
    spec.rms_norm_eps = 1e-6;
    spec.rope_theta = 1e4;
    spec.max_positions = 4096;
    spec.vocabulary = 37;
    spec.target_layers = 6;
    spec.mask_token = 36;
    return spec;
}

inline TargetConfig toy_target(const DraftSpec& spec) {
    TargetConfig target;
    target.architecture = "Qwen3ForCausalLM";
    target.model_type = "qwen3";
    target.hidden = spec.hidden;
    target.intermediate = spec.intermediate;
    target.layers = spec.target_layers;
    target.vocabulary = spec.vocabulary;
    target.heads = spec.heads;
    target.kv_heads = spec.kv_heads;
    target.head_dim = spec.head_dim;
    target.rms_norm_eps = spec.rms_norm_eps;
    target.rope_theta = spec.rope_theta;
    target.rotary_dims = spec.head_dim;
    target.max_positions = spec.max_positions;
    target.end_tokens = {34};
    target.pad_token = 35;
    return target;
}

struct ToyDocument {
    std::int64_t tokens = 0;
    std::int64_t prompt = 0;  // tokens before the answer; the rest is the assistant's own
};

inline PackedBatch pack(const std::vector<ToyDocument>& documents, std::int64_t vocabulary, std::uint64_t seed = 5) {
    PackedBatch batch;
    Philox rng(seed, 3);
    for (std::size_t d = 0; d < documents.size(); ++d) {
        batch.document_begin.push_back(static_cast<std::int32_t>(batch.ids.size()));
        batch.row_of_document.push_back(static_cast<std::int64_t>(d));
        for (std::int64_t p = 0; p < documents[d].tokens; ++p) {
            batch.ids.push_back(static_cast<std::int32_t>(rng.next_below(static_cast<std::uint64_t>(vocabulary - 3))));
            batch.loss_mask.push_back(p >= documents[d].prompt ? 1 : 0);
            batch.document.push_back(static_cast<std::int32_t>(d));
            batch.position.push_back(static_cast<std::int32_t>(p));
        }
    }
    batch.document_begin.push_back(static_cast<std::int32_t>(batch.ids.size()));
    return batch;
}

// One document of a packed batch, alone.
inline PackedBatch document_of(const PackedBatch& batch, std::size_t document) {
    const auto begin = batch.document_begin[document];
    const auto end = batch.document_begin[document + 1];
    PackedBatch alone;
    alone.ids.assign(batch.ids.begin() + begin, batch.ids.begin() + end);
    alone.loss_mask.assign(batch.loss_mask.begin() + begin, batch.loss_mask.begin() + end);
    alone.position.assign(batch.position.begin() + begin, batch.position.begin() + end);
    alone.document.assign(alone.ids.size(), 0);
    alone.document_begin = {0, end - begin};
    alone.row_of_document = {batch.row_of_document[document]};
    return alone;
}

inline DraftPhases toy_phases(const DraftSpec& spec, std::vector<std::string>& names) {
    DraftPhases phases;
    const auto next = [&](const std::string& name) {
        names.push_back(name);
        return static_cast<int>(names.size()) - 1;
    };
    phases.context = next("context");
    for (std::size_t i = 0; i < spec.layers.size(); ++i) phases.forward.push_back(next("forward"));
    phases.loss = next("loss");
    phases.backward.resize(spec.layers.size());
    for (std::size_t i = spec.layers.size(); i-- > 0;) phases.backward[i] = next("backward");
    phases.context_backward = next("context backward");
    phases.optimizer = next("optimizer");
    phases.persistent = {0, phases.optimizer};
    return phases;
}

inline std::vector<std::vector<double>> tensor_values(const Context& context, const DraftTensors& tensors) {
    std::vector<std::vector<double>> values;
    for (const NamedTensor& entry : named_tensors(tensors)) values.push_back(doubles_of(context, entry.tensor));
    return values;
}

// Weights, gradients and a step in one planned arena on a device; frozen parts beside it. Values are made as f32 and rounded to what the device
// works with, so that a reference which reads them back sees the same.
class DraftCase {
public:
    // `matrices`: dtype of their gradients.
    DraftCase(const DraftSpec& spec, const DraftStepSettings& settings, std::optional<DType> matrices = {}, std::uint64_t seed = 11)
        : spec_(spec), settings_(settings), context_(settings.device) {
        const DType working = working_dtype(settings.device);
        std::vector<std::string> names;
        const DraftPhases phases = toy_phases(spec, names);
        std::vector<BufferSpec> buffers = draft_step_buffers(spec, settings, phases);
        const auto add = [&](const std::vector<BufferSpec>& part) { buffers.insert(buffers.end(), part.begin(), part.end()); };
        const Lifetime always = phases.persistent;
        add(draft_tensor_buffers(spec, "weights", Category::kWeights, always, working, working));
        add(draft_tensor_buffers(spec, "gradients", Category::kGradients, always, matrices.value_or(working), DType::kF32));
        for (const char* name : {"embedding", "head", "target_head"})
            buffers.push_back({name, working, {spec.vocabulary, spec.hidden}, Category::kTarget, always});
        const auto workspace = static_cast<std::int64_t>(draft_step_workspace_bytes(spec, settings));
        buffers.push_back({"workspace", DType::kU8, {workspace}, Category::kWorkspace, always});
        plan_ = make_plan(std::move(names), std::move(buffers));
        arena_ = std::make_unique<Arena>(settings.device, plan_);
        model_ = {spec, bind_draft_tensors(spec, "weights", *arena_), arena_->tensor("embedding"), arena_->tensor("head")};
        gradients_ = bind_draft_tensors(spec, "gradients", *arena_);
        randomise(model_.embedding, seed, 1.0);
        randomise(model_.head, seed + 1, 0.5);
        randomise(target_head(), seed + 2, 0.5);
        for (const NamedTensor& entry : named_tensors(model_.weights)) {
            const bool gain = entry.tensor.shape.rank() == 1;
            randomise(entry.tensor, ++seed, gain ? 0.2 : 1.0 / std::sqrt(static_cast<double>(entry.tensor.row_elements())),
                      gain ? 1.0 : 0.0);
        }
        for (const NamedTensor& entry : named_tensors(gradients_)) fill_bytes(context_, entry.tensor, 0);
        step_ = std::make_unique<DraftStep>(spec, settings, *arena_);
        context_.bind_workspace(arena_->tensor("workspace"));
    }

    // Everything a step leaves behind becomes NaN, and gradients zero.
    void poison() { fill(0xff); }
    // The same with any byte, the scratch of ops included.
    void fill(unsigned char byte) {
        fill_bytes(context_, arena_->tensor("workspace"), byte);
        for (const PlacedBuffer& buffer : plan_.buffers) {
            const std::string& name = buffer.spec.name;
            if (name.rfind("draft.step.", 0) == 0 && name.find("rope_") == std::string::npos)
                fill_bytes(context_, arena_->tensor(name), byte);
        }
        for (const NamedTensor& entry : named_tensors(gradients_)) fill_bytes(context_, entry.tensor, 0);
    }

    std::vector<double> hidden(const PackedBatch& batch, const TargetFeatures& features, const AnchorSet& anchors) {
        return values(step_->forward(context_, model_, batch, features, anchors));
    }
    // One micro-batch: forward, loss, backward; its statistics alone.
    LossStatistics run(const PackedBatch& batch, const TargetFeatures& features, const AnchorSet& anchors) {
        step_->clear_sums(context_);
        return accumulate(batch, features, anchors);
    }
    // A further one; the statistics since sums were last cleared.
    LossStatistics accumulate(const PackedBatch& batch, const TargetFeatures& features, const AnchorSet& anchors,
                              Write write = Write::kAccumulate) {
        step_->forward(context_, model_, batch, features, anchors);
        step_->loss(context_, model_, features, anchors, target_head(), true);
        step_->backward(context_, model_, features, anchors, gradients_, {}, write);
        return step_->statistics(context_);
    }

    // Of the last forward, with gradients.
    LossStatistics loss(const TargetFeatures& features, const AnchorSet& anchors) {
        step_->clear_sums(context_);
        step_->loss(context_, model_, features, anchors, target_head(), true);
        return step_->statistics(context_);
    }

    const DraftSpec& spec() const { return spec_; }
    const DraftStepSettings& settings() const { return settings_; }
    const Context& context() const { return context_; }
    const DraftModel& model() const { return model_; }
    const DraftTensors& gradients() const { return gradients_; }
    DraftStep& step() { return *step_; }
    const Plan& plan() const { return plan_; }
    Tensor target_head() const { return arena_->tensor("target_head"); }

    std::vector<double> values(const Tensor& tensor) const { return doubles_of(context_, tensor); }
    std::vector<std::vector<double>> gradient_values() const { return tensor_values(context_, gradients_); }
    ref::DraftFrozenRef frozen(const TargetFeatures& features) const {
        return {values(model_.embedding), values(model_.head), values(features.taps), values(features.final_state), values(target_head())};
    }

private:
    void randomise(const Tensor& tensor, std::uint64_t seed, double scale, double mean = 0.0) {
        const HostBuffer host = random_f32(tensor.shape, seed, scale, mean);
        set_values(context_, values_of(Context(), host), tensor);
    }

    DraftSpec spec_;
    DraftStepSettings settings_;
    Context context_;
    Plan plan_;
    std::unique_ptr<Arena> arena_;
    DraftModel model_;
    DraftTensors gradients_;
    std::unique_ptr<DraftStep> step_;
};

// Features of `tokens` tokens in a device's memory.
class ToyFeatures {
public:
    // `change` may edit the taps, f32 on the host, on their way.
    ToyFeatures(const Context& context, const DraftSpec& spec, std::int64_t tokens, const std::function<void(const Tensor&)>& change = {})
        : taps_(context.device(), working_dtype(context.device()), {tokens, static_cast<std::int64_t>(spec.taps.size()) * spec.hidden}),
          final_state_(context.device(), working_dtype(context.device()), {tokens, spec.hidden}) {
        const HostBuffer taps = random_f32(taps_.tensor().shape, 71, 2.0), final_state = random_f32(final_state_.tensor().shape, 72, 2.0);
        if (change) change(taps);
        const Context host;
        set_values(context, values_of(host, taps), taps_);
        set_values(context, values_of(host, final_state), final_state_);
    }
    TargetFeatures view() const { return {taps_, final_state_}; }
    TargetFeatures rows(std::int64_t begin, std::int64_t count) const { return view().rows(begin, count); }

private:
    DeviceBuffer taps_, final_state_;
};

// Weights for the scalar reference; `make(value)` turns a stored float into T, in the order of named_tensors.
template <typename T, typename Make>
ref::DraftWeightsRef<T> reference_weights(const Context& context, const DraftTensors& weights, const Make& make) {
    const auto read = [&](const Tensor& tensor) {
        std::vector<T> values;
        for (const double v : doubles_of(context, tensor)) values.push_back(make(v));
        return values;
    };
    ref::DraftWeightsRef<T> r;
    r.fc = read(weights.fc);
    r.hidden_norm = read(weights.hidden_norm);
    for (const DraftLayerWeights& w : weights.layers) {
        ref::DraftLayerRef<T> layer;
        layer.input_norm = read(w.input_norm);
        layer.q_proj = read(w.q_proj);
        layer.k_proj = read(w.k_proj);
        layer.v_proj = read(w.v_proj);
        layer.o_proj = read(w.o_proj);
        layer.q_norm = read(w.q_norm);
        layer.k_norm = read(w.k_norm);
        layer.post_norm = read(w.post_norm);
        layer.gate_proj = read(w.gate_proj);
        layer.up_proj = read(w.up_proj);
        layer.down_proj = read(w.down_proj);
        r.layers.push_back(std::move(layer));
    }
    r.norm = read(weights.norm);
    return r;
}

}  // namespace dflash::testing
