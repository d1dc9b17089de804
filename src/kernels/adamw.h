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
    Tensor weight;    // f32, updated in place (the master)
    Tensor gradient;  // f32, read
    Tensor m;         // f32, updated
    Tensor v;         // f32, updated
    float weight_decay = 0.0F;
};

struct AdamWParams {
    std::vector<AdamWTensor>* tensors = nullptr;
    float lr = 0.0F, beta1 = 0.9F, beta2 = 0.999F, eps = 1e-8F;
    std::int64_t step = 1;  // t, from 1
    double grad_scale = 1.0;
};
void adamw_step(const Context& context, const AdamWParams& params);

// Sum of squares over all tensors in double, in a fixed order for one thread count.
double sum_of_squares(const Context& context, const std::vector<Tensor>& tensors);

}  // namespace dflash
