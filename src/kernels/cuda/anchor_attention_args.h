// SPDX-License-Identifier: MIT
// What the anchor attention kernels are given: device pointers and integers. anchor_attention_launch.cpp makes them from Tensors.
#pragma once

#include "kernels/cuda/device/bf16_bits.h"

namespace dflash::cuda {

struct AnchorAttentionShape {
    int context_rows;  // S
    int tokens;        // A*W
    int live_tokens;   // num_live*W
    int block_size;    // W
    int heads, kv_heads, head_dim;
    int window;  // 0 = full
    bool causal_block;
    float scale;
    int multiprocessors;  // to use at most; 0 = all. Changes no result.
    int tile = 0;         // of the portable back end's compiled tiles (tile_config.h)
    int group() const { return heads / kv_heads; }
};

struct AnchorAttentionInputs {
    const Bf16Bits* q;          // (A*W, H, D)
    const Bf16Bits* k_context;  // (S, G, D)
    const Bf16Bits* v_context;  // (S, G, D)
    const Bf16Bits* k_block;    // (A*W, G, D)
    const Bf16Bits* v_block;    // (A*W, G, D)
    const int* begin_row;       // (A)
    const int* anchor_row;      // (A)
};

struct AnchorAttentionForwardArgs {
    AnchorAttentionShape shape;
    AnchorAttentionInputs in;
    Bf16Bits* out;  // (A*W, H, D), =
    float* lse;     // (A*W, H), =, natural log
};

struct AnchorAttentionBackwardArgs {
    AnchorAttentionShape shape;
    AnchorAttentionInputs in;
    const Bf16Bits* d_out;  // (A*W, H, D)
    const Bf16Bits* out;    // (A*W, H, D)
    const float* lse;       // (A*W, H)
    float* delta;           // (A*W, H), =, row sums of d_out * out
    Bf16Bits* d_q;          // (A*W, H, D), =
    Bf16Bits* d_k_context;  // (S, G, D), =
    Bf16Bits* d_v_context;  // (S, G, D), =
    Bf16Bits* d_k_block;    // (A*W, G, D), =
    Bf16Bits* d_v_block;    // (A*W, G, D), =
};

// Queue the work on `stream` (a cudaStream_t). A shape that the back end has no kernel for must not reach it.
namespace portable {
void forward(const AnchorAttentionForwardArgs& args, void* stream);
void backward(const AnchorAttentionBackwardArgs& args, void* stream);
}  // namespace portable
namespace hopper {
void forward(const AnchorAttentionForwardArgs& args, void* stream);
void backward(const AnchorAttentionBackwardArgs& args, void* stream);
}  // namespace hopper

// delta = row sums of d_out * out, shared by both back ends.
void anchor_attention_row_sums(const AnchorAttentionBackwardArgs& args, void* stream);

}  // namespace dflash::cuda
