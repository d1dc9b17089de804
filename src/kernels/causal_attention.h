// SPDX-License-Identifier: MIT
// The frozen target's attention: query row i sees key rows [key_begin[i], key_end[i]). Packed prefill passes the document's
// first row and i + 1; decoding passes 0 and position + 1 over a cache. Forward only.
#pragma once

#include "kernels/context.h"
#include "tensor/tensor.h"

namespace dflash {

struct CausalAttentionParams {
    Tensor q;          // f32 (rows, H, D)
    Tensor k;          // f32 (key rows, G, D)
    Tensor v;          // f32 (key rows, G, D)
    Tensor key_begin;  // i32 (rows)
    Tensor key_end;    // i32 (rows); key_end <= key_begin gives a zero row
    float scale = 1.0F;
    Tensor out;  // f32 (rows, H, D), =
};
// A row's result depends on its own keys only, not on how many rows are computed beside it (bit-equal).
void causal_attention_forward(const Context& context, const CausalAttentionParams& params);

}  // namespace dflash
