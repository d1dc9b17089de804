// SPDX-License-Identifier: MIT
#include "draft/draft_layer_backward.h"

#include <cmath>

#include "kernels/head_norm_rope.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"

namespace dflash {
namespace {

// Through a norm into the residual stream: d_x += gradient; gain's gradient +=. `x` is the norm's input.
void norm_backward(const Context& context, const Tensor& d_y, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                   const Tensor& d_weight, const Tensor& d_x) {
    rms_norm_backward(context, {d_y, x, weight, rstd, 0.0F, d_x, Write::kAccumulate, d_weight});
}

void normed_again(const Context& context, const DraftSpec& spec, const Tensor& x, const Tensor& weight, const Tensor& h) {
    rms_norm_forward(context, {x, weight, static_cast<float>(spec.rms_norm_eps), 0.0F, Tensor{}, h, Tensor{}});
}

void mlp_backward(const Context& context, const LayerBackwardParams& p) {
    const BlockActivations& keep = p.forward.keep;
    const DraftLayerWeights& weights = *p.forward.weights;
    const LayerBackwardScratch& s = p.scratch;
    linear_backward_input(context, {p.d_x, weights.down_proj, s.again.y});
    swiglu_backward(context, {s.again.y, keep.gate, keep.up, keep.gate, keep.up, s.again.y});
    linear_backward_weight(context, {p.d_x, s.again.y, p.gradients->down_proj, p.write_gradients});
    p.ready("mlp.down_proj.weight");
    normed_again(context, *p.forward.spec, keep.x_mid, weights.post_norm, s.again.h);
    linear_backward_weight(context, {keep.gate, s.again.h, p.gradients->gate_proj, p.write_gradients});
    p.ready("mlp.gate_proj.weight");
    linear_backward_weight(context, {keep.up, s.again.h, p.gradients->up_proj, p.write_gradients});
    p.ready("mlp.up_proj.weight");
    linear_backward_input(context, {keep.gate, weights.gate_proj, s.d_h, Write::kOverwrite});
    linear_backward_input(context, {keep.up, weights.up_proj, s.d_h, Write::kAccumulate});
    norm_backward(context, s.d_h, keep.x_mid, weights.post_norm, keep.post_rstd, p.gradients->post_norm, p.d_x);
    p.ready("post_attention_layernorm.weight");
}

// In place: gradients of rotated, normed heads become those of the raw ones.
void unrotate_backward(const Context& context, const LayerBackwardParams& p, const Tensor& d, const Tensor& raw, const Tensor& rstd,
                       const Tensor& positions, const Tensor& norm, const Tensor& d_norm) {
    const std::int64_t heads = raw.shape[1] / p.forward.spec->head_dim;
    HeadNormRopeBackwardParams params;
    params.d_y = as_heads(d, heads);
    params.x = as_heads(raw, heads);
    params.weight = norm;
    params.rstd = rstd;
    params.positions = positions;
    params.cos = p.forward.rope.cos;
    params.sin = p.forward.rope.sin;
    params.d_x = as_heads(d, heads);
    params.d_weight = d_norm;
    head_norm_rope_backward(context, params);
}

void attention_backward(const Context& context, const LayerBackwardParams& p) {
    const DraftSpec& spec = *p.forward.spec;
    const BlockActivations& keep = p.forward.keep;
    const DraftLayerWeights& weights = *p.forward.weights;
    const LayerBackwardScratch& s = p.scratch;
    norm_and_rotate(context, spec, keep.q_raw, weights.q_norm, p.forward.positions, p.forward.rope, s.again.q, Tensor{});
    norm_and_rotate(context, spec, keep.k_raw, weights.k_norm, p.forward.positions, p.forward.rope, s.again.k, Tensor{});
    norm_and_rotate(context, spec, p.keys.k_raw, weights.k_norm, p.context_positions, p.forward.rope, s.k_context, Tensor{});
    AnchorAttentionBackwardParams attention;
    attention.d_out = as_heads(s.d_attention, spec.heads);
    attention.q = as_heads(s.again.q, spec.heads);
    attention.k_context = as_heads(s.k_context, spec.kv_heads);
    attention.v_context = as_heads(p.keys.v, spec.kv_heads);
    attention.k_block = as_heads(s.again.k, spec.kv_heads);
    attention.v_block = as_heads(keep.v, spec.kv_heads);
    attention.mask = attention_mask(p.forward);
    attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
    attention.out = as_heads(keep.attention, spec.heads);
    attention.lse = keep.lse;
    attention.delta = s.delta;
    attention.d_q = as_heads(s.d_q, spec.heads);
    attention.d_k_context = as_heads(s.d_k_context, spec.kv_heads);
    attention.d_v_context = as_heads(s.d_v_context, spec.kv_heads);
    attention.d_k_block = as_heads(s.d_k, spec.kv_heads);
    attention.d_v_block = as_heads(s.d_v, spec.kv_heads);
    anchor_attention_backward(context, attention);
    const DraftLayerWeights& d = *p.gradients;
    unrotate_backward(context, p, s.d_q, keep.q_raw, keep.q_rstd, p.forward.positions, weights.q_norm, d.q_norm);
    p.ready("self_attn.q_norm.weight");
    unrotate_backward(context, p, s.d_k, keep.k_raw, keep.k_rstd, p.forward.positions, weights.k_norm, d.k_norm);
    unrotate_backward(context, p, s.d_k_context, p.keys.k_raw, p.keys.rstd, p.context_positions, weights.k_norm, d.k_norm);
    p.ready("self_attn.k_norm.weight");
}

void projections_backward(const Context& context, const LayerBackwardParams& p) {
    const BlockActivations& keep = p.forward.keep;
    const DraftLayerWeights& weights = *p.forward.weights;
    const DraftLayerWeights& d = *p.gradients;
    const LayerBackwardScratch& s = p.scratch;
    normed_again(context, *p.forward.spec, keep.x, weights.input_norm, s.again.h);
    linear_backward_weight(context, {s.d_q, s.again.h, d.q_proj, p.write_gradients});
    p.ready("self_attn.q_proj.weight");
    linear_backward_weight(context, {s.d_k, s.again.h, d.k_proj, p.write_gradients});
    linear_backward_weight(context, {s.d_k_context, p.ctx, d.k_proj, Write::kAccumulate});
    p.ready("self_attn.k_proj.weight");
    linear_backward_weight(context, {s.d_v, s.again.h, d.v_proj, p.write_gradients});
    linear_backward_weight(context, {s.d_v_context, p.ctx, d.v_proj, Write::kAccumulate});
    p.ready("self_attn.v_proj.weight");
    linear_backward_input(context, {s.d_k_context, weights.k_proj, p.d_ctx, p.write_d_ctx});
    linear_backward_input(context, {s.d_v_context, weights.v_proj, p.d_ctx, Write::kAccumulate});
    linear_backward_input(context, {s.d_q, weights.q_proj, s.d_h, Write::kOverwrite});
    linear_backward_input(context, {s.d_k, weights.k_proj, s.d_h, Write::kAccumulate});
    linear_backward_input(context, {s.d_v, weights.v_proj, s.d_h, Write::kAccumulate});
    norm_backward(context, s.d_h, keep.x, weights.input_norm, keep.in_rstd, d.input_norm, p.d_x);
    p.ready("input_layernorm.weight");
}

}  // namespace

void layer_backward(const Context& context, const LayerBackwardParams& p) {
    mlp_backward(context, p);
    linear_backward_input(context, {p.d_x, p.forward.weights->o_proj, p.scratch.d_attention});
    linear_backward_weight(context, {p.d_x, p.forward.keep.attention, p.gradients->o_proj, p.write_gradients});
    p.ready("self_attn.o_proj.weight");
    attention_backward(context, p);
    projections_backward(context, p);
}

}  // namespace dflash
