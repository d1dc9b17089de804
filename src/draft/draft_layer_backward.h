// SPDX-License-Identifier: MIT
// One drafter layer, backward: the reverse of draft_layer.h, product by product. d_x comes in as the gradient of the layer's output and
// leaves as that of its input. Keys and values of the context come from the same weights as the block's, so those weights' gradients are
// sums over both kinds of rows; d_ctx sums over the layers.
#pragma once

#include <functional>
#include <string>

#include "draft/draft_layer.h"
#include "kernels/linear.h"

namespace dflash {

// Of the working dtype, but delta, which is f32. N = live block rows, S = context rows.
struct LayerBackwardScratch {
    BlockScratch again;               // h, q, k made again; y: first the gradient of silu(gate) * up, then that value itself
    Tensor k_context;                 // (S, G*D) made again
    Tensor d_h;                       // (N, C)
    Tensor d_attention;               // (N, H*D)
    Tensor delta;                     // (N, H)
    Tensor d_q;                       // (N, H*D)
    Tensor d_k, d_v;                  // (N, G*D)
    Tensor d_k_context, d_v_context;  // (S, G*D)
};

struct LayerBackwardParams {
    BlockForwardParams forward;  // as in the forward; keep.gate and keep.up are overwritten by their gradients
    ContextKeys keys;            // k_raw, rstd and v of the forward
    Tensor ctx;                  // (S, C)
    Tensor context_positions;    // i32 (S)
    LayerBackwardScratch scratch;
    const DraftLayerWeights* gradients = nullptr;  // norms: +=
    Write write_gradients = Write::kAccumulate;    // of matrices
    Tensor d_x;                                    // (N, C) in and out
    Tensor d_ctx;                                  // (S, C)
    Write write_d_ctx = Write::kAccumulate;
    std::function<void(const char*)> ready;  // called with the name within the layer, e.g. "mlp.down_proj.weight"
};
void layer_backward(const Context& context, const LayerBackwardParams& params);

}  // namespace dflash
