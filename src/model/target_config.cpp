// SPDX-License-Identifier: MIT
#include "model/target_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "io/text.h"

namespace dflash {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;  // keeps products of two sizes far from overflow
constexpr std::int64_t kMaxLayers = 4096;
constexpr double kHybridRotaryFactor = 0.25;
constexpr std::int64_t kHybridFullAttentionInterval = 4;

// One config.json: keys are looked up in `text` (text_config where there is one), some also in `root`.
struct Source {
    const Json& root;
    const Json& text;
    const std::string& path;
    std::string where;  // path, and "text_config" where keys come from there

    std::int64_t size(const std::string& key, std::int64_t limit = kMaxSize) const {
        const auto value = json_get<std::int64_t>(text, key, where);
        if (value < 1 || value > limit) throw_bad_input("{}: key '{}' is {}, expected 1 to {}", where, key, value, limit);
        return value;
    }
    double positive(const Json& object, const std::string& key) const {
        const auto value = json_get<double>(object, key, where);
        if (!(value > 0) || !std::isfinite(value)) throw_bad_input("{}: key '{}' is {}, expected a positive number", where, key, value);
        return value;
    }
    // True when either level says so.
    bool flag_anywhere(const std::string& key) const {
        return json_get_or<bool>(root, key, false, path) || json_get_or<bool>(text, key, false, where);
    }
    bool has(const std::string& key) const { return text.contains(key) && !text.at(key).is_null(); }
};

std::string without_text_suffix(const std::string& model_type) {
    constexpr std::string_view kSuffix = "_text";
    return model_type.ends_with(kSuffix) ? model_type.substr(0, model_type.size() - kSuffix.size()) : model_type;
}

TargetFamily family_of(const std::string& model_type, const std::string& where) {
    const std::string kind = without_text_suffix(model_type);
    if (kind == "qwen3") return TargetFamily::kQwen3;
    if (kind == "qwen3_5") return TargetFamily::kHybrid;
    if (kind == "llama") return TargetFamily::kLlama3;
    struct Refusal {
        std::string_view kind, reason;
    };
    static constexpr std::array<Refusal, 5> kRefusals = {{
        {"qwen3_moe", "mixtures of experts are not supported yet"},
        {"qwen3_5_moe", "mixtures of experts are not supported yet"},
        {"qwen3_next", "mixtures of experts and the fused projections of Qwen3-Next are not supported yet"},
        {"gpt_oss", "attention sinks and mixtures of experts are not supported yet"},
        {"qwen4_exp", "its sigmoid delta-rule gate, indexer and n-gram embeddings make it another architecture"},
    }};
    for (const Refusal& refusal : kRefusals) {
        if (refusal.kind == kind) throw_bad_input("{}: model_type '{}' is not supported: {}", where, model_type, refusal.reason);
    }
    throw_bad_input("{}: model_type '{}' is not supported; supported are qwen3, qwen3_5 (also used by Qwen3.6 and 3.8) and llama", where,
                    printable(model_type));
}

// Settings that would change the forward pass and are not built: refused, never ignored.
void refuse_unsupported(const Source& source, const TargetConfig& config) {
    const auto refuse = [&](const std::string& what) { throw_bad_input("{}: {} is not supported", source.where, what); };
    const auto set = [](const Json& object, const char* key) { return object.contains(key) && !object.at(key).is_null(); };
    if (config.architecture.find("DFlash") != std::string::npos) {
        throw_bad_input("{}: is the config of a drafter ({}), a target model is expected", source.where, config.architecture);
    }
    if (set(source.root, "quantization_config") || set(source.text, "quantization_config")) {
        refuse("a quantised checkpoint (quantization_config)");
    }
    if (source.flag_anywhere("layer_scale")) refuse("layer_scale = true");
    if (source.flag_anywhere("attention_bias")) refuse("attention_bias = true");
    if (source.flag_anywhere("mlp_bias")) refuse("mlp_bias = true");
    if (source.flag_anywhere("use_sliding_window")) refuse("a target with sliding-window attention (use_sliding_window = true)");
    if (json_get_or<std::int64_t>(source.text, "num_experts", 0, source.where) > 0) refuse("a mixture of experts (num_experts > 0)");
    if (!json_get_or<bool>(source.text, "attn_output_gate", true, source.where)) refuse("attn_output_gate = false");
    const auto activation = json_get_or<std::string>(source.text, "hidden_act", "silu", source.where);
    if (activation != "silu") refuse("hidden_act = '" + printable(activation) + "' (only silu)");
}

std::vector<TargetLayerKind> read_layer_kinds(const Source& source, const TargetConfig& config) {
    const bool hybrid = config.family == TargetFamily::kHybrid;
    std::vector<TargetLayerKind> kinds(static_cast<std::size_t>(config.layers), TargetLayerKind::kFullAttention);
    if (!source.has("layer_types")) {
        const std::int64_t interval =
            source.has("full_attention_interval") ? source.size("full_attention_interval") : kHybridFullAttentionInterval;
        for (std::int64_t i = 0; hybrid && i < config.layers; ++i) {
            if ((i + 1) % interval != 0) kinds[static_cast<std::size_t>(i)] = TargetLayerKind::kLinearAttention;
        }
        return kinds;
    }
    const auto names = json_get<std::vector<std::string>>(source.text, "layer_types", source.where);
    if (names.size() != kinds.size()) {
        throw_bad_input("{}: layer_types lists {} layers, num_hidden_layers is {}", source.where, names.size(), config.layers);
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (names[i] == "full_attention") continue;
        if (names[i] != "linear_attention" || !hybrid) {
            throw_bad_input("{}: layer_types[{}] = '{}' is not supported in model_type '{}'", source.where, i, printable(names[i]),
                            config.model_type);
        }
        kinds[i] = TargetLayerKind::kLinearAttention;
    }
    return kinds;
}

// The nested rope_parameters first, then the flat keys and rope_scaling of older files.
void read_rope(const Source& source, TargetConfig& config) {
    static const Json kNone = Json::object();
    const auto object_at = [&](const char* key) -> const Json& {
        if (!source.has(key)) return kNone;
        const Json& value = source.text.at(key);
        if (!value.is_object()) throw_bad_input("{}: key '{}' is not an object", source.where, key);
        return value;
    };
    const Json& nested = object_at("rope_parameters");
    const auto owner = [&](const char* key) -> const Json& { return nested.contains(key) ? nested : source.text; };
    config.rope_theta = source.positive(owner("rope_theta"), "rope_theta");

    double factor = 1;
    if (owner("partial_rotary_factor").contains("partial_rotary_factor")) {
        factor = source.positive(owner("partial_rotary_factor"), "partial_rotary_factor");
    } else if (config.family == TargetFamily::kHybrid) {
        factor = kHybridRotaryFactor;
        log_warning("[target] {}: partial_rotary_factor is absent; using {}, the default of this model family", source.where, factor);
    }
    config.rotary_dims = static_cast<std::int64_t>(static_cast<double>(config.head_dim) * std::min(factor, 2.0));
    if (config.rotary_dims < 2 || config.rotary_dims % 2 != 0 || config.rotary_dims > config.head_dim) {
        throw_bad_input("{}: partial_rotary_factor {} of head_dim {} gives {} rotary dimensions; expected an even number, at most head_dim",
                        source.where, factor, config.head_dim, config.rotary_dims);
    }

    const std::string inv_freq_dtype = json_get_or<std::string>(nested, "inv_freq_dtype", "float32", source.where);
    if (inv_freq_dtype != "float32" && inv_freq_dtype != "bfloat16") {
        throw_bad_input("{}: rope_parameters.inv_freq_dtype is '{}'; it can be float32 or bfloat16", source.where,
                        printable(inv_freq_dtype));
    }
    config.bf16_rope_frequencies = inv_freq_dtype == "bfloat16";
    const Json& scaling = source.has("rope_parameters") ? nested : object_at("rope_scaling");
    const char* type_key = scaling.contains("rope_type") ? "rope_type" : "type";  // "type" in old files
    const auto type = json_get_or<std::string>(scaling, type_key, "default", source.where);
    if (type == "default") return;
    if (type != "llama3") {
        throw_bad_input("{}: rope type '{}' is not supported; supported are default and llama3", source.where, printable(type));
    }
    config.rope_scaling.enabled = true;
    config.rope_scaling.factor = source.positive(scaling, "factor");
    config.rope_scaling.low_freq_factor = source.positive(scaling, "low_freq_factor");
    config.rope_scaling.high_freq_factor = source.positive(scaling, "high_freq_factor");
    config.rope_scaling.original_max_positions = json_get<std::int64_t>(scaling, "original_max_position_embeddings", source.where);
    if (config.rope_scaling.original_max_positions < 1 || config.rope_scaling.high_freq_factor <= config.rope_scaling.low_freq_factor) {
        throw_bad_input(
            "{}: llama3 rope scaling needs original_max_position_embeddings of at least 1 and high_freq_factor over "
            "low_freq_factor",
            source.where);
    }
}

void read_attention(const Source& source, TargetConfig& config) {
    config.heads = source.size("num_attention_heads");
    config.kv_heads = source.size("num_key_value_heads");
    if (config.family == TargetFamily::kLlama3 && !source.has("head_dim")) {
        config.head_dim = config.hidden / config.heads;  // Llama 3.1 files leave it out; Qwen's head_dim is never hidden / heads
    } else {
        config.head_dim = source.size("head_dim");
    }
    if (config.heads % config.kv_heads != 0) {
        throw_bad_input("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", source.where, config.heads,
                        config.kv_heads);
    }
}

void read_delta_rule(const Source& source, TargetConfig& config) {
    config.key_heads = source.size("linear_num_key_heads");
    config.value_heads = source.size("linear_num_value_heads");
    config.key_dim = source.size("linear_key_head_dim");
    config.value_dim = source.size("linear_value_head_dim");
    config.conv_taps = source.size("linear_conv_kernel_dim", 64);
    if (config.value_heads % config.key_heads != 0) {
        throw_bad_input("{}: linear_num_value_heads {} is not a multiple of linear_num_key_heads {}", source.where, config.value_heads,
                        config.key_heads);
    }
    const auto gate = json_get_or<std::string>(source.text, "output_gate_type", "silu", source.where);
    if (gate != "silu" && gate != "swish" && gate != "sigmoid") {
        throw_bad_input("{}: output_gate_type '{}' is not supported; supported are silu, swish and sigmoid", source.where, printable(gate));
    }
    config.sigmoid_output_gate = gate == "sigmoid";
}

// A token id, a list of them, or null; appended where new. Ids that the vocabulary does not have (tiny copies of big models keep those of
// the original) can never occur and are left out.
void add_token_ids(const Json& object, const std::string& key, const std::string& where, std::int64_t vocabulary,
                   std::vector<std::int32_t>& ids) {
    if (!object.contains(key) || object.at(key).is_null()) return;
    const auto listed = object.at(key).is_array() ? json_get<std::vector<std::int64_t>>(object, key, where)
                                                  : std::vector<std::int64_t>{json_get<std::int64_t>(object, key, where)};
    for (const std::int64_t id : listed) {
        if (id < 0 || id >= vocabulary) {
            log_warning("[target] {}: {} {} is outside the vocabulary of {} and is ignored", where, key, id, vocabulary);
            continue;
        }
        const auto token = static_cast<std::int32_t>(id);
        if (std::find(ids.begin(), ids.end(), token) == ids.end()) ids.push_back(token);
    }
}

void read_tokens(const Source& source, TargetConfig& config) {
    const std::string generation_path = (fs::path(source.path).parent_path() / "generation_config.json").string();
    const Json generation = path_exists(generation_path) ? read_json_file(generation_path) : Json::object();
    if (!generation.is_object()) throw_bad_input("{}: is not an object", generation_path);
    const auto ids_of = [&](std::initializer_list<const char*> keys) {
        std::vector<std::int32_t> ids;
        for (const char* key : keys) {
            add_token_ids(source.text, key, source.where, config.vocabulary, ids);
            if (&source.root != &source.text) add_token_ids(source.root, key, source.path, config.vocabulary, ids);
            add_token_ids(generation, key, generation_path, config.vocabulary, ids);
        }
        return ids;
    };
    config.end_tokens = ids_of({"eos_token_id"});
    const std::vector<std::int32_t> pad = ids_of({"pad_token_id"});
    if (!pad.empty()) config.pad_token = pad.front();
    config.forbidden_tokens = ids_of({"image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"});
}

std::string architecture_of(const Json& root, const std::string& path) {
    const auto names = json_get_or<std::vector<std::string>>(root, "architectures", {}, path);
    return names.empty() ? "" : names.front();
}

}  // namespace

TargetConfig read_target_config(const std::string& path_or_folder) {
    std::error_code unknown;
    const bool is_folder = fs::is_directory(path_or_folder, unknown);
    const std::string path = is_folder ? (fs::path(path_or_folder) / "config.json").string() : path_or_folder;
    const Json root = read_json_file(path);
    if (!root.is_object()) throw_bad_input("{}: is not an object", path);
    const bool is_nested = root.contains("text_config") && !root.at("text_config").is_null();
    const Json& text = is_nested ? root.at("text_config") : root;
    const Source source{root, text, path, is_nested ? path + ": text_config" : path};
    if (!text.is_object()) throw_bad_input("{}: is not an object", source.where);

    TargetConfig config;
    config.architecture = architecture_of(root, path);
    config.model_type = json_get<std::string>(text, "model_type", source.where);
    config.family = family_of(config.model_type, source.where);
    refuse_unsupported(source, config);
    config.hidden = source.size("hidden_size");
    config.intermediate = source.size("intermediate_size");
    config.layers = source.size("num_hidden_layers", kMaxLayers);
    config.vocabulary = source.size("vocab_size");
    config.max_positions = source.size("max_position_embeddings");
    config.rms_norm_eps = source.positive(text, "rms_norm_eps");
    config.tied_head = source.flag_anywhere("tie_word_embeddings");
    read_attention(source, config);
    read_rope(source, config);
    config.layer_kinds = read_layer_kinds(source, config);
    if (config.family == TargetFamily::kHybrid) read_delta_rule(source, config);
    read_tokens(source, config);
    return config;
}

}  // namespace dflash
