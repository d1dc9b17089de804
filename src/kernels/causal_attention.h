// SPDX-License-Identifier: MIT
// The frozen target's attention: query row i sees key rows [key_begin[i], key_end[i]). Packed prefill passes the document's
// first row and i + 1; decoding passes 0 and position + 1 over a cache. Forward only. Tensors without a dtype here are in the device's
// working dtype.
#pragma once

#include "kernels/context.h"
#include "tensor/tensor.h"

namespace dflash {

struct CausalAttentionParams {
    Tensor q;          // (rows, H, D)
    Tensor k;          // (key rows, G, D)
    Tensor v;          // (key rows, G, D)
    Tensor key_begin;  // i32 (rows)
    Tensor key_end;    // i32 (rows); key_end <= key_begin gives a zero row
    float scale = 1.0F;
    Tensor out;  // (rows, H, D), =
};
// A row's result depends on its own keys only, not on the rows computed beside it (bit-equal). On CUDA that holds among calls with more than 32
// rows or no more keys than rows, and among those with at most 32 rows over one longer cache, which are cut along the keys.
void causal_attention_forward(const Context& context, const CausalAttentionParams& params);
// Scratch of calls with at most `rows` rows over `key_rows` keys, from the context's workspace.
std::size_t causal_attention_workspace_bytes(Device device, std::int64_t rows, std::int64_t key_rows, std::int64_t heads,
                                             std::int64_t head_dim);

}  // namespace dflash
