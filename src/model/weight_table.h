// SPDX-License-Identifier: MIT
// The one list of the target's tensors: what a checkpoint calls each (without prefix), its shape and its place in TargetWeights.
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
    Shape shape;        // in memory; the convolution is (channels, K), on disk (channels, 1, K)
    bool zero_centred;  // a norm stored as its offset from one
    bool exact;         // f32 on every device; else in the device's working dtype
    Tensor* tensor;     // its view in the TargetWeights that the table was made for
};

// Undefined views, with as many layers as are wanted: `num_layers`, all when it is negative, none for the embedding and head alone.
TargetWeights undefined_target_weights(const TargetConfig& config, TargetPart part, std::int64_t num_layers);
// The tensors of `weights` (defined or not), in the order of a forward pass. An untied head comes last; a tied one is the embedding
// and is not listed. `weights` must outlive the table.
std::vector<WeightDecl> weight_table(const TargetConfig& config, TargetWeights& weights);

constexpr const char* kEmbeddingName = "embed_tokens.weight";
constexpr const char* kFinalNormName = "norm.weight";
constexpr const char* kHeadName = "lm_head.weight";

}  // namespace dflash
