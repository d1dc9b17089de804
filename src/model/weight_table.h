// SPDX-License-Identifier: MIT
// The one list of the target's tensors: what a checkpoint calls each (without prefix), its shape and where it goes in TargetWeights.
// Memory plan, binding, loading and inspection all walk it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/target_config.h"
#include "model/target_weights.h"
#include "tensor/tensor.h"

namespace dflash {

struct WeightDecl {
    std::string name;   // "layers.3.self_attn.q_proj.weight"
    Shape shape;        // in memory, f32; the convolution is (channels, K), on disk (channels, 1, K)
    bool zero_centred;  // a norm stored as its offset from one
    Tensor* (*slot)(TargetWeights& weights, std::int64_t layer);
    std::int64_t layer;  // -1 for those outside the layers
};

// In the order of a forward pass. `num_layers` < 0: all. An untied head comes last; a tied one is the embedding and is not listed.
std::vector<WeightDecl> weight_table(const TargetConfig& config, TargetPart part, std::int64_t num_layers = -1);

constexpr const char* kEmbeddingName = "embed_tokens.weight";
constexpr const char* kFinalNormName = "norm.weight";
constexpr const char* kHeadName = "lm_head.weight";

}  // namespace dflash
