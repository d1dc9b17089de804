// SPDX-License-Identifier: MIT
#include <fmt/core.h>

#include <initializer_list>

#include "draft/draft_step_impl.h"
#include "kernels/elementwise.h"
#include "kernels/rms_norm.h"

namespace dflash {
namespace {

using Ready = std::function<void(const std::string&)>;

// Without live blocks nothing is added, but every tensor is still announced once.
void announce_all(const DraftTensors& gradients, const Ready& ready) {
    if (!ready) return;
    for (const NamedTensor& entry : named_tensors(gradients)) ready(entry.name);
}

}  // namespace

void DraftStep::backward(const Context& context, const DraftModel& model, const TargetFeatures& features, const AnchorSet& anchors,
                         const DraftTensors& gradients, const Ready& on_gradient_ready, Write write) {
    Impl& step = *impl_;
    DFLASH_CHECK(step.num_live == anchors.num_live, "backward of {} blocks after a forward of {}", anchors.num_live, step.num_live);
    const std::int64_t rows = step.rows();
    // Products overwrite or add. Norms' ops add, so to overwrite one is to clear it when its turn comes.
    const auto begin = [&](std::initializer_list<Tensor> turn) {
        if (write == Write::kAccumulate) return;
        for (const Tensor& gradient : turn) fill_zero(context, gradient);
    };
    if (rows == 0) {
        for (const NamedTensor& entry : named_tensors(gradients)) begin({entry.tensor});
        return announce_all(gradients, on_gradient_ready);
    }
    const auto ready = [&](const std::string& name) {
        if (on_gradient_ready) on_gradient_ready(name);
    };
    const StepViews& views = step.views;
    const DraftTensors& weights = model.weights;
    const Tensor d_x = first_rows(views.d_x, rows);
    begin({gradients.norm});
    rms_norm_backward(context, {d_x, first_rows(views.x.back(), rows), weights.norm, first_rows(views.final_rstd, rows), 0.0F, d_x,
                                Write::kOverwrite, gradients.norm});
    ready("norm.weight");

    const std::int64_t context_rows = step.context_rows;
    const Tensor ctx = first_rows(views.ctx, context_rows);
    const Tensor context_positions = first_rows(views.context_positions, context_rows);
    const Tensor d_ctx = first_rows(views.d_ctx, context_rows);
    const std::size_t layers = step.spec.layers.size();
    for (std::size_t layer = layers; layer-- > 0;) {
        LayerBackwardParams params;
        params.forward = step.layer_forward(model, layer, true);
        params.keys = step.context_keys(layer, true);
        if (step.settings.recompute != Recompute::kNone) {
            context_keys_forward(context, step.spec, weights.layers[layer], ctx, context_positions, views.rope, params.keys);
            step.settings.recompute == Recompute::kLayer ? block_forward(context, params.forward)
                                                         : block_attention_forward(context, params.forward);
        }
        params.ctx = ctx;
        params.context_positions = context_positions;
        params.scratch = live_views(views.back, rows, context_rows);
        const DraftLayerWeights& d = gradients.layers[layer];
        begin({d.input_norm, d.post_norm, d.q_norm, d.k_norm});
        params.gradients = &d;
        params.write_gradients = write;
        params.d_x = d_x;
        params.d_ctx = d_ctx;
        params.write_d_ctx = layer + 1 == layers ? Write::kOverwrite : Write::kAccumulate;
        params.ready = [&](const char* name) { ready(fmt::format("layers.{}.{}", layer, name)); };
        layer_backward(context, params);
    }

    const Tensor fc_out = first_rows(views.fc_out, context_rows);
    const Tensor d_fc_out = first_rows(views.d_fc_out, context_rows);
    begin({gradients.hidden_norm});
    rms_norm_backward(context, {d_ctx, fc_out, weights.hidden_norm, first_rows(views.fc_rstd, context_rows), 0.0F, d_fc_out,
                                Write::kOverwrite, gradients.hidden_norm});
    ready("hidden_norm.weight");
    linear_backward_weight(context, {d_fc_out, features.taps, gradients.fc, write});
    ready("fc.weight");
}

}  // namespace dflash
