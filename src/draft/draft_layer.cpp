// SPDX-License-Identifier: MIT
#include "draft/draft_layer.h"

#include <cmath>

#include "kernels/head_norm_rope.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"

namespace dflash {

void norm_and_rotate(const Context& context, const DraftSpec& spec, const Tensor& raw, const Tensor& norm, const Tensor& positions,
                     const RopeTables& rope, const Tensor& out, const Tensor& rstd) {
    const std::int64_t heads = raw.shape[1] / spec.head_dim;
    HeadNormRopeForwardParams params;
    params.x = as_heads(raw, heads);
    params.weight = norm;
    params.eps = static_cast<float>(spec.rms_norm_eps);
    params.positions = positions;
    params.cos = rope.cos;
    params.sin = rope.sin;
    params.y = as_heads(out, heads);
    params.rstd = rstd;
    head_norm_rope_forward(context, params);
}

void context_keys_forward(const Context& context, const DraftSpec& spec, const DraftLayerWeights& weights, const Tensor& ctx,
                          const Tensor& positions, const RopeTables& rope, const ContextKeys& keys) {
    linear_forward(context, {ctx, weights.k_proj, keys.k_raw});
    linear_forward(context, {ctx, weights.v_proj, keys.v});
    norm_and_rotate(context, spec, keys.k_raw, weights.k_norm, positions, rope, keys.k, keys.rstd);
}

AnchorAttentionMask attention_mask(const BlockForwardParams& params) {
    const DraftLayerSpec& layer = params.spec->layers[params.layer];
    AnchorAttentionMask mask;
    mask.begin_row = params.begin_row;
    mask.anchor_row = params.anchor_row;
    mask.num_live = params.num_live;
    mask.block_size = params.spec->block_size;
    mask.window = layer.window;
    mask.causal_block = layer.causal_block;
    return mask;
}

void block_attention_forward(const Context& context, const BlockForwardParams& params) {
    const DraftSpec& spec = *params.spec;
    const DraftLayerWeights& weights = *params.weights;
    const BlockActivations& keep = params.keep;
    const BlockScratch& scratch = params.scratch;
    rms_norm_forward(context,
                     {keep.x, weights.input_norm, static_cast<float>(spec.rms_norm_eps), 0.0F, params.residual, scratch.h, keep.in_rstd});
    linear_forward(context, {scratch.h, weights.q_proj, keep.q_raw});
    linear_forward(context, {scratch.h, weights.k_proj, keep.k_raw});
    linear_forward(context, {scratch.h, weights.v_proj, keep.v});
    norm_and_rotate(context, spec, keep.q_raw, weights.q_norm, params.positions, params.rope, scratch.q, keep.q_rstd);
    norm_and_rotate(context, spec, keep.k_raw, weights.k_norm, params.positions, params.rope, scratch.k, keep.k_rstd);
    AnchorAttentionForwardParams attention;
    attention.q = as_heads(scratch.q, spec.heads);
    attention.k_context = as_heads(params.k_context, spec.kv_heads);
    attention.v_context = as_heads(params.v_context, spec.kv_heads);
    attention.k_block = as_heads(scratch.k, spec.kv_heads);
    attention.v_block = as_heads(keep.v, spec.kv_heads);
    attention.mask = attention_mask(params);
    attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
    attention.out = as_heads(keep.attention, spec.heads);
    attention.lse = keep.lse;
    anchor_attention_forward(context, attention);
}

void block_forward(const Context& context, const BlockForwardParams& params) {
    const DraftLayerWeights& weights = *params.weights;
    const BlockActivations& keep = params.keep;
    const BlockScratch& scratch = params.scratch;
    const auto eps = static_cast<float>(params.spec->rms_norm_eps);
    block_attention_forward(context, params);
    linear_forward(context, {keep.attention, weights.o_proj, keep.x_mid});
    rms_norm_forward(context, {keep.x_mid, weights.post_norm, eps, 0.0F, keep.x, scratch.h, keep.post_rstd});
    linear_forward(context, {scratch.h, weights.gate_proj, keep.gate});
    linear_forward(context, {scratch.h, weights.up_proj, keep.up});
    if (!params.out.defined()) return;
    swiglu_forward(context, {keep.gate, keep.up, scratch.y});
    linear_forward(context, {scratch.y, weights.down_proj, params.out});
}

}  // namespace dflash
