// SPDX-License-Identifier: MIT
#include "draft/draft_spec.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "draft/draft_config.h"
#include "io/json.h"

namespace dflash {
namespace {

constexpr std::int64_t kDefaultTaps = 5;
constexpr std::int64_t kDefaultWindow = 2048;
constexpr std::int32_t kQwen3Mask = 151669;
constexpr std::int32_t kQwen35Mask = 248070;

// numerator / denominator rounded to the nearest integer, halves to the even one.
std::int64_t round_half_even(std::int64_t numerator, std::int64_t denominator) {
    const std::int64_t floor = numerator / denominator;
    const std::int64_t twice_rest = 2 * (numerator % denominator);
    const bool up = twice_rest > denominator || (twice_rest == denominator && floor % 2 != 0);
    return floor + (up ? 1 : 0);
}

void set_default_geometry(const TargetConfig& target, DraftSpec& spec) {
    spec.hidden = target.hidden;
    spec.intermediate = target.intermediate;
    if (target.hidden >= 1024) {
        spec.heads = 32;
        spec.kv_heads = 8;
        spec.head_dim = 128;
    } else {
        spec.head_dim = 64;
        spec.heads = std::max<std::int64_t>(1, target.hidden / 64);
        spec.kv_heads = std::max<std::int64_t>(1, spec.heads / 2);
        while (spec.heads % spec.kv_heads != 0) --spec.kv_heads;
    }
    spec.rms_norm_eps = target.rms_norm_eps;
    spec.rope_theta = target.rope_theta;
    spec.max_positions = target.max_positions;
    spec.vocabulary = target.vocabulary;
    spec.target_layers = target.layers;
}

// Hybrid targets, or an explicit window: sliding layers with a last full one. All full otherwise.
std::vector<DraftLayerSpec> default_layers(const TargetConfig& target, const DraftGeometryFlags& flags) {
    if (flags.no_sliding_window && flags.sliding_window > 0) {
        throw_bad_input("a sliding window of {} tokens and no sliding window were asked for: give one of the two", flags.sliding_window);
    }
    const bool sliding = !flags.no_sliding_window && (flags.sliding_window > 0 || target.family == TargetFamily::kHybrid);
    const std::int64_t window = flags.sliding_window > 0 ? flags.sliding_window : kDefaultWindow;
    std::vector<DraftLayerSpec> layers(static_cast<std::size_t>(flags.draft_layers));
    for (std::size_t i = 0; sliding && i + 1 < layers.size(); ++i) layers[i] = {DraftLayerKind::kSlidingAttention, window, true};
    return layers;
}

std::vector<std::int64_t> chosen_taps(const TargetConfig& target, const DraftGeometryFlags& flags) {
    if (!flags.target_layer_ids.empty()) return flags.target_layer_ids;
    if (target.layers < 3) throw_bad_input("a target of {} layers is too small to tap: at least 3 are needed", target.layers);
    return default_taps(target.layers, std::min(kDefaultTaps, std::max<std::int64_t>(1, target.layers - 3)));
}

std::int32_t chosen_mask_token(const TargetConfig& target, const DraftGeometryFlags& flags, std::int32_t tokenizer_mask) {
    if (flags.mask_token_id >= 0) return flags.mask_token_id;
    if (tokenizer_mask >= 0) return tokenizer_mask;
    const std::int32_t known = target.family == TargetFamily::kQwen3    ? kQwen3Mask
                               : target.family == TargetFamily::kHybrid ? kQwen35Mask
                                                                        : -1;
    return known < target.vocabulary ? known : -1;
}

}  // namespace

std::vector<std::int64_t> default_taps(std::int64_t target_layers, std::int64_t count) {
    if (count < 1) throw_bad_input("a drafter taps at least one layer of its target, not {}", count);
    if (count == 1) return {target_layers / 2};
    std::vector<std::int64_t> taps;
    for (std::int64_t i = 0; i < count; ++i) taps.push_back(1 + round_half_even(i * (target_layers - 4), count - 1));
    return taps;
}

DraftSpec make_draft_spec(const TargetConfig& target, const DraftGeometryFlags& flags, std::int32_t tokenizer_mask) {
    if (flags.draft_layers < 1) throw_bad_input("--draft-layers is {}: at least 1 is needed", flags.draft_layers);
    DraftSpec spec;
    set_default_geometry(target, spec);
    spec.block_size = flags.block_size;
    spec.layers = default_layers(target, flags);
    spec.taps = chosen_taps(target, flags);
    spec.mask_token = chosen_mask_token(target, flags, tokenizer_mask);
    std::string where = "the drafter asked for";
    if (!flags.draft_config.empty()) {
        const std::int32_t flag_mask = flags.mask_token_id;
        spec = overlay_draft_config(spec, target, flags.draft_config);
        where = flags.draft_config;
        if (flag_mask >= 0 && flag_mask != spec.mask_token) {
            throw_bad_input("--mask-token-id is {}, but {} says {}: make them agree", flag_mask, where, spec.mask_token);
        }
    }
    if (spec.mask_token < 0) {
        throw_bad_input("no mask token is known for this target ({}): give --mask-token-id, an id that text never holds",
                        target.model_type);
    }
    check_draft_spec(spec, where);
    check_draft_matches_target(spec, target, where);
    warn_about_serving(spec);
    return spec;
}

void check_draft_spec(const DraftSpec& spec, const std::string& where) {
    if (spec.block_size < 2 || spec.block_size > 64) throw_bad_input("{}: block size {} is outside 2..64", where, spec.block_size);
    if (spec.layers.empty()) throw_bad_input("{}: a drafter has at least one layer", where);
    if (spec.hidden < 1 || spec.intermediate < 1 || spec.vocabulary < 1 || spec.max_positions < 1) {
        throw_bad_input("{}: hidden size {}, feed-forward size {}, vocabulary {} and maximum positions {} must all be positive", where,
                        spec.hidden, spec.intermediate, spec.vocabulary, spec.max_positions);
    }
    if (spec.heads < 1 || spec.kv_heads < 1 || spec.heads % spec.kv_heads != 0) {
        throw_bad_input("{}: {} attention heads cannot share {} key-value heads evenly", where, spec.heads, spec.kv_heads);
    }
    if (spec.head_dim < 2 || spec.head_dim % 2 != 0) throw_bad_input("{}: head_dim {} is not a positive even number", where, spec.head_dim);
    for (std::size_t i = 0; i < spec.layers.size(); ++i) {
        const DraftLayerSpec& layer = spec.layers[i];
        if (layer.kind == DraftLayerKind::kSlidingAttention && layer.window < spec.block_size) {
            throw_bad_input("{}: layer {} has a sliding window of {} tokens, less than a block of {}", where, i, layer.window,
                            spec.block_size);
        }
    }
    if (spec.taps.empty()) throw_bad_input("{}: no target layers are tapped (target_layer_ids is empty)", where);
    for (std::size_t i = 0; i < spec.taps.size(); ++i) {
        if (spec.taps[i] < 0) throw_bad_input("{}: target layer id {} is negative; ids count from 0", where, spec.taps[i]);
        if (i > 0 && spec.taps[i] <= spec.taps[i - 1]) {
            throw_bad_input("{}: target layer ids must increase strictly, but {} follows {}", where, spec.taps[i], spec.taps[i - 1]);
        }
        if (spec.target_layers > 0 && spec.taps[i] > spec.target_layers - 2) {
            throw_bad_input("{}: target layer id {} is too large: of {} layers, 0..{} can be tapped", where, spec.taps[i],
                            spec.target_layers, spec.target_layers - 2);
        }
    }
    if (spec.mask_token < 0 || spec.mask_token >= spec.vocabulary) {
        throw_bad_input("{}: mask token {} is no row of the embedding (0..{})", where, spec.mask_token, spec.vocabulary - 1);
    }
}

void warn_about_serving(const DraftSpec& spec) {
    for (const DraftLayerSpec& layer : spec.layers) {
        if (layer.kind != DraftLayerKind::kSlidingAttention || layer.causal_block) continue;
        log_warning("[draft] sliding-window layers with bidirectional blocks: vLLM serves them so, SGLang serves them causal");
        return;
    }
}

void check_draft_matches_target(const DraftSpec& spec, const TargetConfig& target, const std::string& where) {
    if (spec.hidden != target.hidden) {
        throw_bad_input("{}: hidden size {}, but the target's is {}: this drafter is for another target", where, spec.hidden,
                        target.hidden);
    }
    if (spec.vocabulary != target.vocabulary) {
        throw_bad_input("{}: vocabulary of {} words, but the target's has {}: head and embedding could not be shared", where,
                        spec.vocabulary, target.vocabulary);
    }
    if (spec.target_layers > 0 && spec.target_layers != target.layers) {
        throw_bad_input("{}: made for a target of {} layers, but this one has {}", where, spec.target_layers, target.layers);
    }
    if (spec.taps.back() > target.layers - 2) {
        throw_bad_input("{}: taps target layer {}, but of this target's {} layers only 0..{} can be tapped", where, spec.taps.back(),
                        target.layers, target.layers - 2);
    }
    const auto& ends = target.end_tokens;
    if (std::find(ends.begin(), ends.end(), spec.mask_token) != ends.end()) {
        throw_bad_input("{}: mask token {} is an end token of the target: give another with --mask-token-id", where, spec.mask_token);
    }
    if (spec.mask_token == target.pad_token) {
        throw_bad_input("{}: mask token {} is the target's padding token: give another with --mask-token-id", where, spec.mask_token);
    }
    if (spec.max_positions < target.max_positions) {
        log_warning("[draft] {}: the drafter is made for {} positions, its target for {}; longer texts will be refused", where,
                    spec.max_positions, target.max_positions);
    }
}

}  // namespace dflash
