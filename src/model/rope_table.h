// SPDX-License-Identifier: MIT
// cos and sin by position: inv_freq in double, rounded once to f32; the angle is the f32 product (as transformers does).
#pragma once

#include "model/target_config.h"
#include "tensor/tensor.h"

namespace dflash {

struct RopeFrequencies {
    double theta = 0;
    std::int64_t rotary_dims = 0;
    RopeScalingLlama3 scaling = {};
    bool round_to_bf16 = false;
};
RopeFrequencies rope_frequencies(const TargetConfig& config);

// Fills cos, sin: f32 (positions, rotary_dims / 2), on any device; done when it returns.
void fill_rope_table(const RopeFrequencies& frequencies, const Tensor& cos, const Tensor& sin);

}  // namespace dflash
