// SPDX-License-Identifier: MIT
// Anchor attention, the heart of the drafter: each block of W query slots sees a prefix of its own document's context
// (features of the target) and its own block, nothing else. The mask is two integers a block and the layer's window;
// it is never materialised, and no score matrix exists.
//
//   slot k of block b sees context rows r in [max(begin_b, anchor_b + k - (window - 1)), anchor_b)   (window > 0)
//                                       r in [begin_b, anchor_b)                                    (window = 0: full)
//   and the block's own keys j in [0, W) (bidirectional) or j in [0, k] (causal_block).
//
// Blocks are sorted by anchor row (a precondition that the GPU back ends use; the CPU accepts any order). Query head h reads kv head
// h / (H / G). Blocks >= num_live are dead: output, log-sum-exp and gradients are zero, and they touch no key.
// Rows that see nothing give zeros, never NaN. Keys nobody may see may hold NaN without effect.
#pragma once

#include <string>

#include "kernels/context.h"
#include "tensor/tensor.h"

namespace dflash {

struct AnchorAttentionMask {
    Tensor begin_row;   // i32 (A): first context row of the block's document, row of the packed micro-batch
    Tensor anchor_row;  // i32 (A): the anchor's row; context ends before it
    std::int64_t num_live = 0;
    std::int64_t block_size = 0;  // W
    std::int64_t window = 0;      // sliding window in tokens, 0 = full
    bool causal_block = false;    // slots see only slots <= their own
};

struct AnchorAttentionForwardParams {
    Tensor q;          // f32|bf16 (A*W, H, D)
    Tensor k_context;  // f32|bf16 (S, G, D)
    Tensor v_context;  // f32|bf16 (S, G, D)
    Tensor k_block;    // f32|bf16 (A*W, G, D)
    Tensor v_block;    // f32|bf16 (A*W, G, D)
    AnchorAttentionMask mask;
    float scale = 1.0F;
    Tensor out;  // as q (A*W, H, D), =
    Tensor lse;  // f32 (A*W, H), =, natural log; 0 for rows that see nothing
};
constexpr const char* kAnchorAttention = "anchor_attention";  // the name of both to a probe (kernels/stopwatch.h)
void anchor_attention_forward(const Context& context, const AnchorAttentionForwardParams& params);

struct AnchorAttentionBackwardParams {
    Tensor d_out;  // as q (A*W, H, D)
    Tensor q;      // as in forward
    Tensor k_context;
    Tensor v_context;
    Tensor k_block;
    Tensor v_block;
    AnchorAttentionMask mask;
    float scale = 1.0F;
    Tensor out;          // forward's output
    Tensor lse;          // forward's log-sum-exp
    Tensor delta;        // f32 (A*W, H), scratch: row sums of d_out * out
    Tensor d_q;          // (A*W, H, D), =
    Tensor d_k_context;  // (S, G, D), = (rows nobody sees become zero)
    Tensor d_v_context;  // (S, G, D), =
    Tensor d_k_block;    // (A*W, G, D), =
    Tensor d_v_block;    // (A*W, G, D), =
};
// Deterministic: no atomics, a fixed order of sums.
void anchor_attention_backward(const Context& context, const AnchorAttentionBackwardParams& params);

// The kernel that such a shape runs on this device, in words, e.g. "fused, Hopper (wgmma)". Error(kBadInput) with the list of those that
// have one where there is none: nothing falls back to a slow path.
std::string anchor_attention_kernel(Device device, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                                    std::int64_t block_size);

}  // namespace dflash
