// SPDX-License-Identifier: MIT
// Root-mean-square norm over rows: y = (offset + w) * x * rstd, rstd = 1/sqrt(mean(x^2) + eps).
// Tensors without a dtype here are in the device's working dtype.
// `weight_offset` is 0 for plain weights (Qwen3, Llama, drafters) and 1 for the zero-centred ones of the hybrid family.
#pragma once

#include "kernels/context.h"
#include "kernels/linear.h"
#include "tensor/tensor.h"

namespace dflash {

struct RmsNormForwardParams {
    Tensor x;       // (rows, C)
    Tensor weight;  // (C)
    float eps = 1e-6F;
    float weight_offset = 0.0F;
    Tensor residual;  // optional (rows, C): first x += residual in place (x then holds the new residual stream)
    Tensor y;         // (rows, C), =
    Tensor rstd;      // optional f32 (rows), =, needed by backward
};
void rms_norm_forward(const Context& context, const RmsNormForwardParams& params);

struct RmsNormBackwardParams {
    Tensor d_y;     // (rows, C)
    Tensor x;       // (rows, C), the normalised input
    Tensor weight;  // (C)
    Tensor rstd;    // f32 (rows)
    float weight_offset = 0.0F;
    Tensor d_x;  // (rows, C), = or += by `write`; may be d_y with =
    Write write = Write::kAccumulate;
    Tensor d_weight;  // f32 (C), always +=; rows are summed in a fixed order for one thread count
};
void rms_norm_backward(const Context& context, const RmsNormBackwardParams& params);
// Scratch of rms_norm_backward for any number of rows, from the context's workspace.
std::size_t rms_norm_backward_workspace_bytes(Device device, std::int64_t columns);

// Gated norm of the delta-rule layers: y = w * x * rstd * gate_fn(z), per head. Forward only (the target is frozen).
struct GatedRmsNormParams {
    Tensor x;       // (rows, D): rows = tokens x heads
    Tensor z;       // (rows, D)
    Tensor weight;  // f32 (D), plain
    float eps = 1e-6F;
    bool sigmoid_gate = false;  // silu otherwise
    Tensor y;                   // (rows, D), =, may be x
};
void gated_rms_norm_forward(const Context& context, const GatedRmsNormParams& params);

}  // namespace dflash
