// SPDX-License-Identifier: MIT
// Everything about a drafter that labels, loss, decoding and export have to agree on, read from and written to the published config.json.
// Conventions of layer ids: docs/formats.md. Kinds that are not built (DSpark, Domino, DFlash 2, ...) are refused by name.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/target_config.h"

namespace dflash {

using Json = nlohmann::json;  // as in io/json.h

enum class DraftLayerKind { kFullAttention, kSlidingAttention };

struct DraftLayerSpec {
    DraftLayerKind kind = DraftLayerKind::kFullAttention;
    std::int64_t window = 0;    // tokens, 0 in full layers
    bool causal_block = false;  // slots see only slots <= their own: the servers' default in sliding layers
    bool operator==(const DraftLayerSpec&) const = default;
};

struct DraftSpec {
    std::int64_t block_size = 16;        // W, 2..64
    std::int64_t alignment_shift = 0;    // slot k predicts position p + k + shift; weighted slots are k >= 1 - shift
    std::vector<DraftLayerSpec> layers;  // (L)
    std::vector<std::int64_t> taps;      // target layer ids n: the residual after layer n; strictly increasing, <= T - 2
    std::int64_t hidden = 0, intermediate = 0, heads = 0, kv_heads = 0, head_dim = 0;  // C F H G D
    double rms_norm_eps = 1e-6;
    double rope_theta = 1e6;
    std::int64_t max_positions = 0;
    std::int64_t vocabulary = 0;     // V of the target
    std::int64_t target_layers = 0;  // T
    std::int32_t mask_token = -1;
    std::vector<std::int32_t> draft_to_target;       // optional vocabulary map; empty = the full vocabulary
    bool owns_embedding = false, owns_head = false;  // the file carries copies (speculators layout)

    std::int64_t num_layers() const { return static_cast<std::int64_t>(layers.size()); }
    std::int64_t first_weighted_slot() const { return 1 - alignment_shift; }
    bool operator==(const DraftSpec&) const = default;
};

struct DraftGeometryFlags {  // what `train` takes; 0 / empty = default
    std::int64_t block_size = 16, draft_layers = 5, sliding_window = 0;
    bool no_sliding_window = false;
    std::vector<std::int64_t> target_layer_ids;
    std::int32_t mask_token_id = -1;
    std::string draft_config;  // FILE wins over the defaults
};
// round_half_even(1 + i (T - 4) / (K - 1)), i = 0..K-1; K = 1: T / 2. (The published rule.)
std::vector<std::int64_t> default_taps(std::int64_t target_layers, std::int64_t count);
// Defaults of the design from the target, then flags, then --draft-config. `tokenizer_mask`: id of <|mask|> or <|MASK|>, -1 = none.
// Throws Error(kBadInput), e.g. when no mask token can be found, or the mask id is an end or pad token.
DraftSpec make_draft_spec(const TargetConfig& target, const DraftGeometryFlags& flags, std::int32_t tokenizer_mask);

// Published layout (top-level or dflash_config keys; conflicts are errors) and unpruned speculators layout.
DraftSpec read_draft_spec(const std::string& folder_or_config);
Json draft_spec_to_config_json(const DraftSpec& spec, const TargetConfig& target);
// Refuses a silent mismatch between a drafter and a target (hidden, vocabulary, layers, taps, mask): Error(kBadInput).
void check_draft_matches_target(const DraftSpec& spec, const TargetConfig& target, const std::string& where);

}  // namespace dflash
