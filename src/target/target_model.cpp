// SPDX-License-Identifier: MIT
#include "target/target_model.h"

#include "target/layers.h"
#include "tensor/working_dtype.h"

namespace dflash {
namespace {

const LayerScratchNames kNames{"target.forward.", "target.rope."};
constexpr const char* kTapsName = "target.features.taps";
constexpr const char* kFinalName = "target.features.final_state";

void check_taps(const TargetConfig& config, const std::vector<std::int64_t>& taps) {
    std::int64_t previous = -2;
    for (const std::int64_t tap : taps) {
        DFLASH_CHECK(tap > previous && tap < config.layers,
                     "tapped layers must rise from -1 (the embedding) to at most {}, found {} after {}", config.layers - 1, tap, previous);
        previous = tap;
    }
}

// Borders, document numbers and positions say the same thing three times; they must agree.
void check_batch(const PackedBatch& batch, std::int64_t max_tokens) {
    const std::int64_t tokens = batch.tokens();
    DFLASH_CHECK(tokens <= max_tokens, "a micro-batch of {} tokens, {} are planned for", tokens, max_tokens);
    DFLASH_CHECK(std::ssize(batch.document) == tokens && std::ssize(batch.position) == tokens && batch.documents() >= 0,
                 "a micro-batch of {} tokens has {} document numbers, {} positions and {} borders", tokens, batch.document.size(),
                 batch.position.size(), batch.document_begin.size());
    std::int32_t row = 0;
    for (std::int64_t document = 0; document < batch.documents(); ++document) {
        const std::int32_t begin = batch.document_begin[static_cast<std::size_t>(document)];
        const std::int32_t end = batch.document_begin[static_cast<std::size_t>(document) + 1];
        DFLASH_CHECK(begin == row && end >= begin && end <= tokens, "document {} of the micro-batch stands at rows {}..{}", document, begin,
                     end);
        for (; row < end; ++row) {
            const auto i = static_cast<std::size_t>(row);
            DFLASH_CHECK(batch.document[i] == document && batch.position[i] == row - begin,
                         "row {} says document {} position {}, the borders say document {} position {}", row, batch.document[i],
                         batch.position[i], document, row - begin);
        }
    }
    DFLASH_CHECK(row == tokens, "the documents of the micro-batch end at row {} of {}", row, tokens);
}

void upload_first(const Context& context, const std::vector<std::int32_t>& values, const Tensor& tensor) {
    context.upload(std::span(values), tensor.slice_rows(0, std::ssize(values)));
}

}  // namespace

std::int64_t TargetForwardSettings::layers_to_run(const TargetConfig& config) const {
    if (want_final) return config.layers;
    return taps.empty() ? 0 : taps.back() + 1;
}

std::vector<BufferSpec> target_forward_buffers(const TargetConfig& config, const TargetForwardSettings& settings, Lifetime forward_lifetime,
                                               Lifetime features_lifetime, Lifetime persistent) {
    std::vector<BufferSpec> buffers =
        layer_scratch_buffers(config, settings.device, settings.max_tokens, settings.max_tokens, kNames, forward_lifetime, persistent);
    const auto add_features = [&](const char* name, std::int64_t columns) {
        buffers.push_back({name, working_dtype(settings.device), {settings.max_tokens, columns}, Category::kInput, features_lifetime});
    };
    if (!settings.taps.empty()) add_features(kTapsName, std::ssize(settings.taps) * config.hidden);
    if (settings.want_final) add_features(kFinalName, config.hidden);
    return buffers;
}

std::vector<LinearShape> target_forward_linears(const TargetConfig& config, const TargetForwardSettings& settings) {
    return layer_linears(config, settings.max_tokens);
}

std::size_t target_forward_workspace_bytes(const TargetConfig& config, const TargetForwardSettings& settings) {
    return layer_workspace_bytes(config, settings.device);
}

struct TargetModel::Scratch {
    LayerScratch layers;
    Tensor taps, final_state;
    std::vector<std::int32_t> key_begin, key_end;  // host, reserved once
};

TargetModel::TargetModel(const TargetConfig& config, const TargetWeights& weights, const TargetForwardSettings& settings,
                         const Arena& arena)
    : config_(config), weights_(weights), settings_(settings) {
    check_taps(config, settings.taps);
    DFLASH_CHECK(std::ssize(weights.layers) >= settings.layers_to_run(config), "{} of {} needed layers have weights", weights.layers.size(),
                 settings.layers_to_run(config));
    auto scratch = std::make_shared<Scratch>();
    scratch->layers = bind_layer_scratch(config, kNames, arena);
    if (!settings.taps.empty()) scratch->taps = arena.tensor(kTapsName);
    if (settings.want_final) scratch->final_state = arena.tensor(kFinalName);
    scratch->key_begin.reserve(static_cast<std::size_t>(settings.max_tokens));
    scratch->key_end.reserve(static_cast<std::size_t>(settings.max_tokens));
    scratch_ = std::move(scratch);
}

TargetFeatures TargetModel::forward(const Context& context, const PackedBatch& batch) const {
    check_batch(batch, settings_.max_tokens);
    const LayerScratch& s = scratch_->layers;
    const std::int64_t tokens = batch.tokens();
    TargetFeatures features;
    if (scratch_->taps.defined()) features.taps = scratch_->taps.slice_rows(0, tokens);
    if (scratch_->final_state.defined()) features.final_state = scratch_->final_state.slice_rows(0, tokens);
    if (tokens == 0) return features;
    scratch_->key_begin.clear();
    scratch_->key_end.clear();
    for (std::int32_t row = 0; row < tokens; ++row) {
        scratch_->key_begin.push_back(row - batch.position[static_cast<std::size_t>(row)]);
        scratch_->key_end.push_back(row + 1);
    }
    upload_first(context, batch.ids, s.ids);
    upload_first(context, batch.position, s.positions);
    upload_first(context, batch.document_begin, s.document_begin);
    upload_first(context, scratch_->key_begin, s.key_begin);
    upload_first(context, scratch_->key_end, s.key_end);
    const TargetLayers layers{&config_, &weights_, s, {}, {}};
    layers.run(context, LayerMode::kPacked, {tokens, tokens, batch.documents()}, settings_.layers_to_run(config_), settings_.taps,
               features.taps, features.final_state);
    return features;
}

}  // namespace dflash
