// SPDX-License-Identifier: MIT
// What the target computes for one document at a time, for writing it down: the residual after any layers, the state after the last norm,
// and log-sum-exp and argmax of the logits, which are made for a few rows at a time and never exist whole. Owns the target's memory; what
// it hands out is host memory in f32.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/packed_batch.h"
#include "kernels/context.h"
#include "model/target_config.h"
#include "target/features.h"

namespace dflash {

struct FeatureRequest {
    std::vector<std::int64_t> layers;  // n: the residual after layer n (n = -1: the embedding); strictly increasing
    bool want_final = false;
    bool want_logits = false;
};
// Error(kBadInput) for layers that the target does not have, or none of anything.
void check_feature_request(const FeatureRequest& request, const TargetConfig& target);

struct DocumentFeatures {
    TargetFeatures states;               // taps (rows, layers * C), final state (rows, C) if wanted
    std::span<const float> logsumexp;    // (rows), with want_logits
    std::span<const std::int32_t> best;  // (rows), with want_logits: index of the largest logit
};

class FeatureExtractor {
public:
    // Loads the layers that are needed; documents have at most `max_tokens` tokens.
    FeatureExtractor(const std::string& target_folder, const FeatureRequest& request, std::int64_t max_tokens, Device device = {});
    ~FeatureExtractor();
    // The result is valid until the next call.
    DocumentFeatures run(std::span<const std::int32_t> ids);
    const TargetConfig& target() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace dflash
