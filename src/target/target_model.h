// SPDX-License-Identifier: MIT
// The frozen target over a packed micro-batch: tokens -> features at the tapped layers. Documents are isolated in every operator.
// All memory is planned: target_forward_buffers() lists it, the model binds to the arena.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/packed_batch.h"
#include "kernels/context.h"
#include "kernels/linear.h"
#include "model/target_config.h"
#include "model/target_weights.h"
#include "target/features.h"
#include "tensor/arena.h"
#include "tensor/plan.h"

namespace dflash {

struct TargetForwardSettings {
    std::int64_t max_tokens = 0;     // S capacity
    std::vector<std::int64_t> taps;  // layer ids n: the residual after layer n; strictly increasing, may be empty
    bool want_final = false;         // also the state after the last norm
    Device device = {};
    // Layers that have to run: up to the last tap, or all when want_final.
    std::int64_t layers_to_run(const TargetConfig& config) const;
};

// "target.features.taps" (S, K*C) and ".final_state" live `features_lifetime`; scratch ("target.forward.*") lives `forward_lifetime`;
// the rope tables ("target.rope.*") are persistent (`persistent`).
std::vector<BufferSpec> target_forward_buffers(const TargetConfig& config, const TargetForwardSettings& settings, Lifetime forward_lifetime,
                                               Lifetime features_lifetime, Lifetime persistent);
std::vector<LinearShape> target_forward_linears(const TargetConfig& config, const TargetForwardSettings& settings);
// Workspace need of the delta rule, beside the linears'.
std::size_t target_forward_workspace_bytes(const TargetConfig& config, const TargetForwardSettings& settings);

class TargetModel {
public:
    // Binds to planned buffers; `arena` must outlive the model. Fills the rope tables.
    TargetModel(const TargetConfig& config, const TargetWeights& weights, const TargetForwardSettings& settings, const Arena& arena);
    // Runs the layers; the result's views have batch.tokens() rows.
    TargetFeatures forward(const Context& context, const PackedBatch& batch) const;
    const TargetConfig& config() const { return config_; }
    const TargetWeights& weights() const { return weights_; }

private:
    TargetConfig config_;
    TargetWeights weights_;
    TargetForwardSettings settings_;
    struct Scratch;
    std::shared_ptr<Scratch> scratch_;
};

}  // namespace dflash
