// SPDX-License-Identifier: MIT
// Every buffer of a drafter's step, once: the same list plans the memory (draft_step_buffers) and binds the views (bind_step_views).
//
// f32 stands for the device's working dtype, but for rstd, log-sum-exp, delta and the loss rows, which are f32 everywhere.
// Kept from a layer's forward to its backward: its input, the residual after attention, raw queries and keys, values, attention's output,
// gate and up: N (2 C + 2 H D + 2 G D + 2 F) + 2 S G D floats. Made again in backward because that costs one pass over memory and no
// product: normed inputs, rotated queries and keys, silu(gate) * up. Recompute::kAttention drops what attention
// keeps, kLayer all but the layer's input.
#pragma once

#include <vector>

#include "draft/draft_layer_backward.h"
#include "draft/draft_model.h"

namespace dflash {

struct LayerViews {
    ContextKeys keys;  // k undefined: it lies in scratch
    BlockActivations block;
};

struct LossViews {
    Tensor logits, teacher_logits;  // f32 (chunk, V)
    Tensor hidden, teacher_state;   // f32 (chunk, C) gathered rows
    Tensor rows, teacher_rows;      // i32 (N) compact list of weighted rows, and of the target's rows that predict their labels
    Tensor labels;                  // i32 (N) compact, as are all below
    Tensor loss, label_prob;        // f32 (N)
    Tensor correct;                 // i32 (N)
    Tensor weight;                  // f32 (N)
};

struct StepViews {
    Tensor ids, positions;                      // i32 (N) of the blocks
    Tensor context_positions;                   // i32 (S)
    Tensor begin_row, anchor_row;               // i32 (A)
    RopeTables rope;                            // (S + W, D/2)
    Tensor fc_out, fc_rstd, ctx;                // f32 (S, C), (S), (S, C)
    std::vector<Tensor> x;                      // f32 (N, C): L layer inputs, and the last layer's output
    std::vector<LayerViews> forward, backward;  // by layer: the same memory, or, of what is made again, one set in each direction
    BlockScratch scratch;
    Tensor k_context;           // f32 (S, G*D), forward's
    Tensor hidden, final_rstd;  // f32 (N, C), (N)
    Tensor sums;                // f64, see kernels/loss_sums.h
    LossViews loss;
    Tensor d_x, d_ctx, d_fc_out;  // f32 (N, C), (S, C), (S, C); d_x is the hidden gradient first, then that of each layer's output
    LayerBackwardScratch back;
};

StepViews bind_step_views(const DraftSpec& spec, const DraftStepSettings& settings, const Arena& arena);

// The first `rows` block rows and `context_rows` context rows of a layer's buffers.
LayerViews live_views(const LayerViews& layer, std::int64_t rows, std::int64_t context_rows);
BlockScratch live_views(const BlockScratch& scratch, std::int64_t rows);
LayerBackwardScratch live_views(const LayerBackwardScratch& scratch, std::int64_t rows, std::int64_t context_rows);

}  // namespace dflash
