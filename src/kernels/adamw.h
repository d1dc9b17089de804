// SPDX-License-Identifier: MIT
// AdamW (Loshchilov & Hutter, "Decoupled weight decay regularization", 2019) over many tensors in one call, and the gradient norm for
// clipping.  g' = g * grad_scale;  m = b1 m + (1-b1) g';  v = b2 v + (1-b2) g'^2;
// w -= lr (m / (1-b1^t) / (sqrt(v / (1-b2^t)) + eps) + weight_decay w)
#pragma once

#include <vector>

#include "kernels/context.h"
#include "tensor/tensor.h"

namespace dflash {

struct AdamWTensor {
    Tensor weight;     // the master, updated in place: f32; or bf16 with `remainder`
    Tensor remainder;  // u16, with a bf16 weight: the rest of the same 32 bits. bits(f32) = (bits(bf16) << 16) + int16(remainder), so the
                       // bf16 weight is the f32 one rounded to nearest, and no second copy exists
    Tensor gradient;   // f32 or bf16, read
    Tensor m;          // f32, updated
    Tensor v;          // f32, updated
    float weight_decay = 0.0F;
};

struct AdamWParams {
    std::vector<AdamWTensor>* tensors = nullptr;
    float lr = 0.0F, beta1 = 0.9F, beta2 = 0.999F, eps = 1e-8F;
    std::int64_t step = 1;  // t, from 1
    Tensor grad_scale;      // f64 (1): gradient_scale()'s. Not finite: nothing is updated
};
void adamw_step(const Context& context, const AdamWParams& params);

// How a step's un-normalised gradients are scaled, without the host having to know: norm = sqrt(sum of squares) / weight_sum,
// scale = 1 / weight_sum, times max_norm / norm where that is smaller. weight_sum 0: both are 0. Where the loss or the norm is not finite the scale is
// NaN, which every update takes as "leave the weights alone"; and a NaN that `scale` held before stays, so that a host which looks only
// now and then finds the weights as they were before the first fault. Sums of squares are f64 in a fixed order.
struct GradientScaleParams {
    const std::vector<Tensor>* gradients = nullptr;  // f32 or bf16
    Tensor sums;                                     // f64: kLossSum and kWeightSum of kernels/loss_sums.h are read
    double max_norm = 0;                             // 0: no clipping
    Tensor norm;                                     // f64 (1), =
    Tensor scale;                                    // f64 (1), =, but for a NaN; zero at first
};
void gradient_scale(const Context& context, const GradientScaleParams& params);
// Scratch of gradient_scale, from the context's workspace.
std::size_t gradient_scale_workspace_bytes(Device device);

}  // namespace dflash
