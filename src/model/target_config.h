// SPDX-License-Identifier: MIT
// config.json of a target: Qwen3, the hybrid family (Qwen3-Next layout excluded until built; Qwen3.5 / 3.6 / 3.8 dense, flat or nested under
// text_config) and Llama 3. Other architectures are refused by name. A required key that is absent is an error, not a default.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dflash {

enum class TargetFamily { kQwen3, kHybrid, kLlama3 };
enum class TargetLayerKind { kFullAttention, kLinearAttention };

struct RopeScalingLlama3 {
    bool enabled = false;
    double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
    std::int64_t original_max_positions = 8192;
};

struct TargetConfig {
    std::string architecture;  // architectures[0]
    std::string model_type;    // as in the file
    TargetFamily family = TargetFamily::kQwen3;
    std::int64_t hidden = 0;        // C
    std::int64_t intermediate = 0;  // F
    std::int64_t layers = 0;        // T
    std::int64_t vocabulary = 0;    // V: rows of the embedding
    std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
    double rms_norm_eps = 0;
    double rope_theta = 0;
    std::int64_t rotary_dims = 0;  // head_dim x partial_rotary_factor
    RopeScalingLlama3 rope_scaling;
    // rope_parameters.inv_freq_dtype "bfloat16": the model is run by a stack that casts its rotary frequencies along with its weights
    // (Module.to in PyTorch does), so features must be made with the same ones. Absent, or "float32": exact ones, as servers compute.
    bool bf16_rope_frequencies = false;
    std::int64_t max_positions = 0;
    bool tied_head = false;
    std::vector<TargetLayerKind> layer_kinds;  // (T)
    // Hybrid family only.
    std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, conv_taps = 0;
    bool sigmoid_output_gate = false;            // of the delta layers' z gate; silu otherwise
    std::vector<std::int32_t> end_tokens;        // config.json and generation_config.json together
    std::vector<std::int32_t> forbidden_tokens;  // image / video placeholders: their presence in text data is refused
    std::int32_t pad_token = -1;

    bool zero_centred_norms() const { return family == TargetFamily::kHybrid; }
    bool has_qk_norm() const { return family != TargetFamily::kLlama3; }
    std::int64_t conv_channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

// `path` is a checkpoint folder or a config.json. Throws Error(kBadInput).
TargetConfig read_target_config(const std::string& path);

}  // namespace dflash
