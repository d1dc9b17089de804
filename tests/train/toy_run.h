// SPDX-License-Identifier: MIT
// A toy target config, drafter and settings for plans and optimizers, without files or weights.
#pragma once

#include "draft/draft_spec.h"
#include "model/target_config.h"
#include "train/run_settings.h"

namespace dflash::testing {

inline TargetConfig toy_target_config() {
    TargetConfig target;
    target.architecture = "Qwen3ForCausalLM";
    target.model_type = "qwen3";
    target.hidden = 64;
    target.intermediate = 96;
    target.layers = 6;
    target.vocabulary = 320;
    target.heads = 4;
    target.kv_heads = 2;
    target.head_dim = 16;
    target.rotary_dims = 16;
    target.rms_norm_eps = 1e-6;
    target.rope_theta = 1e6;
    target.max_positions = 4096;
    target.tied_head = true;
    target.layer_kinds.assign(6, TargetLayerKind::kFullAttention);
    target.end_tokens = {318};
    return target;
}

inline DraftSpec toy_draft_spec(const TargetConfig& target, std::int64_t layers = 2, std::int64_t block_size = 4) {
    DraftGeometryFlags flags;
    flags.block_size = block_size;
    flags.draft_layers = layers;
    flags.mask_token_id = 319;
    return make_draft_spec(target, flags, -1);
}

inline RunSettings toy_run_settings() {
    RunSettings settings;
    settings.token_budget = 64;
    settings.max_anchors = 8;
    settings.loss_chunk = 16;
    return settings;
}

}  // namespace dflash::testing
