// SPDX-License-Identifier: MIT
// cos and sin by position: inv_freq in double, rounded once to f32; the angle is the f32 product (as transformers does).
#pragma once

#include "model/target_config.h"
#include "tensor/tensor.h"

namespace dflash {

// Fills cos, sin: f32 (positions, rotary_dims / 2).
void fill_rope_table(double theta, std::int64_t rotary_dims, const RopeScalingLlama3& scaling, const Tensor& cos, const Tensor& sin);

}  // namespace dflash
