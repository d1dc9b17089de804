// SPDX-License-Identifier: MIT
// Per-head RMS norm followed by rotary embedding (half-split, first `rotary_dims` of D): what queries and keys go through.
//   n = (offset + w) * x * rstd per head;  y_i = n_i cos - n_{i+r/2} sin;  y_{i+r/2} = n_{i+r/2} cos + n_i sin;  rest: y = n
// Without a weight (Llama) only the rotation is applied. Angles come from a table by position.
#pragma once

#include "kernels/context.h"
#include "tensor/tensor.h"

namespace dflash {

struct HeadNormRopeForwardParams {
    Tensor x;  // f32 (rows, heads, D)
    // Elements between consecutive heads' starts in x, and rows' starts; 0 = contiguous. (The hybrid family interleaves
    // query and gate per head: head_stride = 2 D.)
    std::int64_t x_head_stride = 0;
    std::int64_t x_row_stride = 0;
    Tensor weight;  // f32 (D), or undefined: no norm
    float eps = 1e-6F;
    float weight_offset = 0.0F;
    Tensor positions;  // i32 (rows)
    Tensor cos;        // f32 (max positions, rotary_dims / 2)
    Tensor sin;        // f32 (max positions, rotary_dims / 2)
    Tensor y;          // f32 (rows, heads, D), =; may be x when x is contiguous and backward is not needed
    Tensor rstd;       // optional f32 (rows, heads), =
};
void head_norm_rope_forward(const Context& context, const HeadNormRopeForwardParams& params);

struct HeadNormRopeBackwardParams {
    Tensor d_y;     // f32 (rows, heads, D)
    Tensor x;       // f32 (rows, heads, D), the forward's input (contiguous)
    Tensor weight;  // f32 (D)
    Tensor rstd;    // f32 (rows, heads)
    float weight_offset = 0.0F;
    Tensor positions;  // i32 (rows)
    Tensor cos;        // as in forward
    Tensor sin;
    Tensor d_x;       // f32 (rows, heads, D), =; may be d_y
    Tensor d_weight;  // f32 (D), +=, fixed summation order for one thread count
};
void head_norm_rope_backward(const Context& context, const HeadNormRopeBackwardParams& params);
// Scratch of head_norm_rope_backward for any number of rows, from the context's workspace.
std::size_t head_norm_rope_backward_workspace_bytes(Device device, std::int64_t head_dim);

}  // namespace dflash
