// SPDX-License-Identifier: MIT
// One drafter layer, forward: the same code for training and decoding.
//   context:  k_c = rope(k_norm(W_k ctx)), v_c = W_v ctx                  ctx: the fused target features, the same for all layers
//   block:    h = input_norm(x); q, k = rope(norm(W_q h)), rope(norm(W_k h)); v = W_v h
//             x_mid = x + W_o attention(q; [k_c, k], [v_c, v]);  x_next = x_mid + W_down(silu(W_gate y) * W_up y), y = post_norm(x_mid)
// The residual sums ride on the next norm: a layer leaves W_down's product alone in x_next, and the norm that follows adds x_mid to it.
#pragma once

#include "draft/draft_spec.h"
#include "draft/draft_weights.h"
#include "kernels/anchor_attention.h"
#include "kernels/context.h"

namespace dflash {

struct RopeTables {
    Tensor cos, sin;  // f32 (positions, D / 2)
};

// The first `count` rows of a buffer, and rows (n, heads*D) seen as (n, heads, D).
inline Tensor first_rows(const Tensor& tensor, std::int64_t count) { return tensor.slice_rows(0, count); }
inline Tensor as_heads(const Tensor& rows, std::int64_t heads) { return rows.view({rows.shape[0], heads, rows.shape[1] / heads}); }

// Context keys and values of one layer. All f32, S rows.
struct ContextKeys {
    Tensor k_raw;  // (S, G*D) before norm and rotation, kept for backward; may be k when backward is not needed
    Tensor rstd;   // (S, G), undefined when backward is not needed
    Tensor k;      // (S, G*D) what attention reads
    Tensor v;      // (S, G*D)
};
void context_keys_forward(const Context& context, const DraftSpec& spec, const DraftLayerWeights& weights, const Tensor& ctx,
                          const Tensor& positions, const RopeTables& rope, const ContextKeys& keys);
// Normed and rotated keys (or queries) from raw ones; rstd may be undefined.
void norm_and_rotate(const Context& context, const DraftSpec& spec, const Tensor& raw, const Tensor& norm, const Tensor& positions,
                     const RopeTables& rope, const Tensor& out, const Tensor& rstd);

// What the block's forward leaves for backward. All f32; N = live block rows.
struct BlockActivations {
    Tensor x;          // (N, C) in: the embedding, or the layer before's W_down product; out: the layer's input
    Tensor x_mid;      // (N, C) =: the residual after attention
    Tensor in_rstd;    // (N)
    Tensor q_raw;      // (N, H*D)
    Tensor q_rstd;     // (N, H)
    Tensor k_raw;      // (N, G*D)
    Tensor k_rstd;     // (N, G)
    Tensor v;          // (N, G*D)
    Tensor attention;  // (N, H*D)
    Tensor lse;        // (N, H)
    Tensor post_rstd;  // (N)
    Tensor gate, up;   // (N, F)
};
// Not kept: cheap to make again from the above.
struct BlockScratch {
    Tensor h;  // (N, C) the normed input of the products
    Tensor q;  // (N, H*D)
    Tensor k;  // (N, G*D)
    Tensor y;  // (N, F) silu(gate) * up; may be gate when backward is not needed
};

struct BlockForwardParams {
    const DraftSpec* spec = nullptr;
    std::size_t layer = 0;
    const DraftLayerWeights* weights = nullptr;
    Tensor residual;   // (N, C) x_mid of the layer before, added to x; undefined when x is complete
    Tensor positions;  // i32 (N)
    RopeTables rope;
    Tensor begin_row, anchor_row;  // i32 (live blocks)
    std::int64_t num_live = 0;
    Tensor k_context, v_context;  // (S, G*D)
    BlockActivations keep;
    BlockScratch scratch;
    Tensor out;  // (N, C) =: W_down's product; undefined: not made (recomputation needs only what is kept)
};
void block_forward(const Context& context, const BlockForwardParams& params);
// Its first part: up to attention's output.
void block_attention_forward(const Context& context, const BlockForwardParams& params);

AnchorAttentionMask attention_mask(const BlockForwardParams& params);

}  // namespace dflash
