// SPDX-License-Identifier: MIT
#include "draft/draft_step_impl.h"
#include "kernels/embedding.h"
#include "kernels/rms_norm.h"
#include "model/rope_table.h"

namespace dflash {
namespace {

void upload_first(const Context& context, const std::vector<std::int32_t>& from, std::int64_t count, const Tensor& to) {
    context.upload(from.data(), first_rows(to, count));
}

void check_batch(const DraftSpec& spec, const DraftStepSettings& settings, const PackedBatch& batch, const TargetFeatures& features,
                 const AnchorSet& anchors) {
    DFLASH_CHECK(batch.tokens() <= settings.max_tokens, "{} tokens in a step planned for {}", batch.tokens(), settings.max_tokens);
    DFLASH_CHECK(anchors.num_live <= settings.max_anchors && anchors.block_size == spec.block_size,
                 "{} anchors of {} in a step planned for {} of {}", anchors.num_live, anchors.block_size, settings.max_anchors,
                 spec.block_size);
    const auto taps = static_cast<std::int64_t>(spec.taps.size());
    DFLASH_CHECK(features.taps.rows() == batch.tokens() && features.taps.row_elements() == (batch.tokens() > 0 ? taps * spec.hidden : 0),
                 "features {} for {} tokens of {} taps of {}", features.taps.shape.to_string(), batch.tokens(), taps, spec.hidden);
    for (const std::int32_t position : batch.position) {
        if (position >= spec.max_positions) {
            throw_bad_input("a document is longer than the drafter's {} positions: shorten documents with --max-length",
                            spec.max_positions);
        }
    }
}

// ctx = hidden_norm(fc(taps)): once for all layers.
void fuse_features(const Context& context, const DraftSpec& spec, const DraftTensors& weights, const Tensor& taps, const StepViews& views) {
    const Tensor fc_out = first_rows(views.fc_out, taps.rows());
    linear_forward(context, {taps, weights.fc, fc_out});
    rms_norm_forward(context, {fc_out, weights.hidden_norm, static_cast<float>(spec.rms_norm_eps), 0.0F, Tensor{},
                               first_rows(views.ctx, taps.rows()), first_rows(views.fc_rstd, taps.rows())});
}

}  // namespace

DraftStep::DraftStep(const DraftSpec& spec, const DraftStepSettings& settings, const Arena& arena)
    : impl_(std::make_unique<Impl>(spec, settings, arena)) {}

DraftStep::Impl::Impl(const DraftSpec& draft, const DraftStepSettings& step_settings, const Arena& arena)
    : spec(draft), settings(step_settings), views(bind_step_views(draft, step_settings, arena)) {
    fill_rope_table({.theta = spec.rope_theta, .rotary_dims = spec.head_dim}, views.rope.cos, views.rope.sin);
    compact.reserve(static_cast<std::size_t>(settings.max_anchors * spec.block_size));
    host_sums.resize(static_cast<std::size_t>(views.sums.elements()));
}

DraftStep::~DraftStep() = default;

ContextKeys DraftStep::Impl::context_keys(std::size_t layer, bool recomputing) const {
    const LayerViews& kept = recomputing ? views.backward[layer] : views.forward[layer];
    ContextKeys keys = live_views(kept, rows(), context_rows).keys;
    keys.k = first_rows(recomputing ? views.back.k_context : views.k_context, context_rows);
    return keys;
}

BlockForwardParams DraftStep::Impl::layer_forward(const DraftModel& model, std::size_t layer, bool recomputing) const {
    const ContextKeys keys = context_keys(layer, recomputing);
    BlockForwardParams params;
    params.spec = &spec;
    params.layer = layer;
    params.weights = &model.weights.layers[layer];
    params.positions = first_rows(views.positions, rows());
    params.rope = views.rope;
    params.begin_row = first_rows(views.begin_row, num_live);
    params.anchor_row = first_rows(views.anchor_row, num_live);
    params.num_live = num_live;
    params.k_context = keys.k;
    params.v_context = keys.v;
    params.keep = live_views(recomputing ? views.backward[layer] : views.forward[layer], rows(), context_rows).block;
    params.scratch = live_views(recomputing ? views.back.again : views.scratch, rows());
    if (recomputing) return params;
    if (layer > 0) params.residual = first_rows(views.forward[layer - 1].block.x_mid, rows());
    params.out = first_rows(views.x[layer + 1], rows());
    return params;
}

Tensor DraftStep::forward(const Context& context, const DraftModel& model, const PackedBatch& batch, const TargetFeatures& features,
                          const AnchorSet& anchors) {
    Impl& step = *impl_;
    check_batch(step.spec, step.settings, batch, features, anchors);
    StepViews& views = step.views;
    step.num_live = anchors.num_live;
    step.context_rows = batch.tokens();
    const std::int64_t rows = step.rows();
    const Tensor hidden = first_rows(views.hidden, rows);
    if (rows == 0) return hidden;
    upload_first(context, anchors.block_ids, rows, views.ids);
    upload_first(context, anchors.block_position, rows, views.positions);
    upload_first(context, anchors.begin_row, anchors.num_live, views.begin_row);
    upload_first(context, anchors.anchor_row, anchors.num_live, views.anchor_row);
    upload_first(context, batch.position, batch.tokens(), views.context_positions);
    fuse_features(context, step.spec, model.weights, features.taps, views);
    gather_rows(context, {model.embedding, first_rows(views.ids, rows), first_rows(views.x[0], rows)});
    for (std::size_t layer = 0; layer < step.spec.layers.size(); ++layer) {
        context_keys_forward(context, step.spec, model.weights.layers[layer], first_rows(views.ctx, step.context_rows),
                             first_rows(views.context_positions, step.context_rows), views.rope, step.context_keys(layer, false));
        block_forward(context, step.layer_forward(model, layer, false));
    }
    rms_norm_forward(context, {first_rows(views.x.back(), rows), model.weights.norm, static_cast<float>(step.spec.rms_norm_eps), 0.0F,
                               first_rows(views.forward.back().block.x_mid, rows), hidden, first_rows(views.final_rstd, rows)});
    return hidden;
}

}  // namespace dflash
