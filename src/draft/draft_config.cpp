// SPDX-License-Identifier: MIT
#include "draft/draft_config.h"

#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <optional>

#include "base/error.h"
#include "io/json.h"

namespace dflash {
namespace {

bool present(const Json& object, const std::string& key) {
    const auto member = object.find(key);
    return member != object.end() && !member->is_null();
}

// A drafter's config with its dflash_config: keys that may stand in either (servers read both) are read through agreed().
struct DraftConfigReader {
    const Json& top;
    Json inner = Json::object();
    std::string where;

    DraftConfigReader(const Json& config, const std::string& source) : top(config), where(source) {
        if (!top.is_object()) throw_bad_input("{}: a config is a JSON object", where);
        if (present(top, "dflash_config")) inner = top["dflash_config"];
        if (!inner.is_object()) throw_bad_input("{}: key 'dflash_config' is no object", where);
    }
    template <typename T>
    std::optional<T> agreed(const std::string& key) const {
        std::optional<T> value;
        if (present(top, key)) value = json_get<T>(top, key, where);
        if (present(inner, key)) {
            const T other = json_get<T>(inner, key, where + ": dflash_config");
            if (value && *value != other) {
                throw_bad_input("{}: '{}' differs between the top level and dflash_config: remove one of the two", where, key);
            }
            value = other;
        }
        return value;
    }
    template <typename T>
    T required(const std::string& key) const {
        const std::optional<T> value = agreed<T>(key);
        if (!value) throw_bad_input("{}: key '{}' is missing, at the top level and in dflash_config", where, key);
        return *value;
    }
    bool has(const std::string& key) const { return present(top, key) || present(inner, key); }
    bool has_any(std::initializer_list<const char*> keys) const {
        for (const char* key : keys) {
            if (has(key)) return true;
        }
        return false;
    }
};

[[noreturn]] void refuse_kind(const std::string& where, const std::string& kind) {
    throw_bad_input("{}: this is a {} drafter; only plain DFlash drafters are built", where, kind);
}

// Relatives of DFlash whose checkpoints would load in part and then draft badly.
void refuse_other_kinds(const DraftConfigReader& config) {
    const std::string& where = config.where;
    std::string architecture = "DFlashDraftModel";
    if (present(config.top, "architectures")) {
        const auto names = json_get<std::vector<std::string>>(config.top, "architectures", where);
        if (!names.empty()) architecture = names.front();
    }
    if (architecture == "DFlash2DraftModel" || config.has_any({"conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"})) {
        refuse_kind(where, "DFlash 2");
    }
    if (architecture.find("DSpark") != std::string::npos ||
        config.has_any({"markov_rank", "markov_head_type", "confidence_head_with_markov"})) {
        refuse_kind(where, "DSpark");
    }
    const std::string projector = config.agreed<std::string>("projector_type").value_or("");
    if (projector == "domino" || config.has_any({"gru_hidden_dim", "pure_draft_prefix_len"})) refuse_kind(where, "Domino");
    if (!projector.empty()) refuse_kind(where, "DFlash with a '" + projector + "' projector");
    if (json_get_or<std::string>(config.top, "model_type", "qwen3", where) == "dflash" || config.has("target_num_hidden_layers")) {
        refuse_kind(where, "TorchSpec-layout");
    }
    for (const char* name : {"DFlashDraftModel", "DFlashSpeculator", "Qwen3DFlashDraftModel"}) {
        if (architecture == name) return;
    }
    refuse_kind(where, architecture);
}

// Options of published configs that change the maths and are not built: any value but the neutral one is refused by name.
void refuse_unbuilt_options(const DraftConfigReader& config) {
    for (const char* key : {"attention_bias", "attention_sink_bias"}) {
        if (config.agreed<bool>(key).value_or(false)) throw_bad_input("{}: '{}' is on, which is not built", config.where, key);
    }
    for (const char* key : {"attention_value_scale", "output_multiplier", "logit_scale", "partial_rotary_factor"}) {
        const double value = config.agreed<double>(key).value_or(1.0);
        if (value != 1.0) throw_bad_input("{}: '{}' is {}; only 1 is built", config.where, key, value);
    }
    if (config.has("final_logit_softcapping")) throw_bad_input("{}: 'final_logit_softcapping' is not built", config.where);
    if (!config.agreed<bool>("is_neox_style").value_or(true)) {
        throw_bad_input("{}: interleaved rotary embedding ('is_neox_style' false) is not built", config.where);
    }
    const std::string activation = json_get_or<std::string>(config.top, "hidden_act", "silu", config.where);
    if (activation != "silu") throw_bad_input("{}: 'hidden_act' is '{}'; only silu is built", config.where, activation);
}

void refuse_scaled_rope(const Json& rope, const std::string& where) {
    const std::string fallback = json_get_or<std::string>(rope, "type", "default", where);
    const std::string type = json_get_or<std::string>(rope, "rope_type", fallback, where);
    if (type != "default") throw_bad_input("{}: rotary scaling '{}' is not built for drafters", where, type);
    if (json_get_or<double>(rope, "partial_rotary_factor", 1.0, where) != 1.0) {
        throw_bad_input("{}: 'partial_rotary_factor' is not 1; drafters rotate the whole head", where);
    }
}

double read_rope_theta(const Json& body, const std::string& where) {
    std::optional<double> theta;
    if (present(body, "rope_theta")) theta = json_get<double>(body, "rope_theta", where);
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
        if (!present(body, key)) continue;
        const std::string inside = where + ": " + key;
        refuse_scaled_rope(body[key], inside);
        if (!present(body[key], "rope_theta")) continue;
        const double other = json_get<double>(body[key], "rope_theta", inside);
        if (theta && *theta != other) throw_bad_input("{}: 'rope_theta' is {} and, in '{}', {}", where, *theta, key, other);
        theta = other;
    }
    if (!theta) throw_bad_input("{}: key 'rope_theta' is missing (also looked for in rope_parameters)", where);
    return *theta;
}

std::int64_t positive(const Json& body, const std::string& key, const std::string& where) {
    const auto value = json_get<std::int64_t>(body, key, where);
    if (value < 1 || value > INT32_MAX) throw_bad_input("{}: '{}' is {}", where, key, value);
    return value;
}

void read_geometry(const Json& body, const std::string& where, DraftSpec& spec) {
    spec.hidden = positive(body, "hidden_size", where);
    spec.intermediate = positive(body, "intermediate_size", where);
    spec.heads = positive(body, "num_attention_heads", where);
    spec.kv_heads = positive(body, "num_key_value_heads", where);
    spec.head_dim = positive(body, "head_dim", where);
    spec.vocabulary = positive(body, "vocab_size", where);
    spec.max_positions = positive(body, "max_position_embeddings", where);
    spec.rms_norm_eps = json_get<double>(body, "rms_norm_eps", where);
    spec.rope_theta = read_rope_theta(body, where);
    if (!(spec.rms_norm_eps > 0) || !(spec.rope_theta > 0)) {
        throw_bad_input("{}: rms_norm_eps {} and rope_theta {} must be positive", where, spec.rms_norm_eps, spec.rope_theta);
    }
}

// layer_types; where it is absent, the rule of Qwen3 configs: sliding from layer max_window_layers on if use_sliding_window is set.
std::vector<DraftLayerKind> read_layer_kinds(const Json& body, const std::string& where, bool all_sliding) {
    const std::int64_t count = positive(body, "num_hidden_layers", where);
    if (count > 1024) throw_bad_input("{}: 'num_hidden_layers' is {}", where, count);
    const bool use_sliding = json_get_or<bool>(body, "use_sliding_window", true, where);
    std::vector<DraftLayerKind> kinds(static_cast<std::size_t>(count), DraftLayerKind::kFullAttention);
    if (!present(body, "layer_types")) {
        const bool sliding = all_sliding || (present(body, "use_sliding_window") && use_sliding);
        const auto first = all_sliding ? std::int64_t{0} : json_get_or<std::int64_t>(body, "max_window_layers", 0, where);
        for (std::int64_t i = std::max<std::int64_t>(first, 0); sliding && i < count; ++i) {
            kinds[static_cast<std::size_t>(i)] = DraftLayerKind::kSlidingAttention;
        }
        return kinds;
    }
    const auto types = json_get<std::vector<std::string>>(body, "layer_types", where);
    if (types.size() != kinds.size()) {
        throw_bad_input("{}: 'layer_types' lists {} layers, 'num_hidden_layers' is {}", where, types.size(), count);
    }
    for (std::size_t i = 0; i < types.size(); ++i) {
        if (types[i] == "sliding_attention") {
            kinds[i] = DraftLayerKind::kSlidingAttention;
        } else if (types[i] != "full_attention") {
            throw_bad_input("{}: layer type '{}' is not built for drafters", where, types[i]);
        }
        if (kinds[i] == DraftLayerKind::kSlidingAttention && !use_sliding) {
            throw_bad_input("{}: layer {} is a sliding_attention layer, but 'use_sliding_window' is false", where, i);
        }
    }
    return kinds;
}

// How slots see each other in layers of both kinds.
struct BlockCausality {
    bool full = false;
    bool sliding = true;
};

std::vector<DraftLayerSpec> make_layers(const std::vector<DraftLayerKind>& kinds, std::int64_t window, BlockCausality causality) {
    std::vector<DraftLayerSpec> layers;
    for (const DraftLayerKind kind : kinds) {
        const bool sliding = kind == DraftLayerKind::kSlidingAttention;
        layers.push_back({kind, sliding ? window : 0, sliding ? causality.sliding : causality.full});
    }
    return layers;
}

bool any_sliding(const std::vector<DraftLayerKind>& kinds) {
    return std::find(kinds.begin(), kinds.end(), DraftLayerKind::kSlidingAttention) != kinds.end();
}

DraftSpec parse_published(const DraftConfigReader& config) {
    DraftSpec spec;
    const std::string& where = config.where;
    read_geometry(config.top, where, spec);
    spec.block_size = config.required<std::int64_t>("block_size");
    spec.taps = config.required<std::vector<std::int64_t>>("target_layer_ids");
    spec.target_layers = config.required<std::int64_t>("num_target_layers");
    spec.mask_token = static_cast<std::int32_t>(std::min<std::int64_t>(config.required<std::int64_t>("mask_token_id"), INT32_MAX));
    spec.alignment_shift = config.agreed<bool>("sample_from_anchor").value_or(false) ? 1 : 0;
    const auto draft_words = config.agreed<std::int64_t>("draft_vocab_size");
    if (draft_words && *draft_words != spec.vocabulary) {
        throw_bad_input("{}: a pruned vocabulary ('draft_vocab_size' {} of {}) is not built", where, *draft_words, spec.vocabulary);
    }
    // The precedence of servers: is_causal, then causal, then by the layer's kind.
    std::optional<bool> causal = config.agreed<bool>("is_causal");
    if (!causal) causal = config.agreed<bool>("causal");
    const auto kinds = read_layer_kinds(config.top, where, config.agreed<bool>("use_swa").value_or(false));
    std::optional<std::int64_t> window = config.agreed<std::int64_t>("sliding_window");
    const auto swa_window = config.agreed<std::int64_t>("swa_window_size");
    if (window && swa_window && *window != *swa_window) {
        throw_bad_input("{}: 'sliding_window' is {} and 'swa_window_size' {}: make them agree", where, *window, *swa_window);
    }
    if (!window) window = swa_window;
    if (any_sliding(kinds) && !window) throw_bad_input("{}: sliding-window layers, but no 'sliding_window'", where);
    spec.layers = make_layers(kinds, window.value_or(0), {causal.value_or(false), causal.value_or(true)});
    return spec;
}

// The body stands in transformer_layer_config; layer ids count the states, so that id n + 1 is the residual after layer n.
DraftSpec parse_speculators(const DraftConfigReader& config) {
    DraftSpec spec;
    const std::string& where = config.where;
    const std::string type = json_get_or<std::string>(config.top, "speculators_model_type", "dflash", where);
    if (type != "dflash") refuse_kind(where, "speculators '" + type + "'");
    const std::string inside = where + ": transformer_layer_config";
    if (!present(config.top, "transformer_layer_config")) throw_bad_input("{}: key 'transformer_layer_config' is missing", where);
    const DraftConfigReader body(config.top["transformer_layer_config"], inside);
    refuse_unbuilt_options(body);
    read_geometry(body.top, inside, spec);
    spec.block_size = config.required<std::int64_t>("block_size");
    for (const std::int64_t id : config.required<std::vector<std::int64_t>>("aux_hidden_state_layer_ids")) spec.taps.push_back(id - 1);
    spec.mask_token = static_cast<std::int32_t>(std::min<std::int64_t>(config.required<std::int64_t>("mask_token_id"), INT32_MAX));
    spec.alignment_shift = config.agreed<bool>("sample_from_anchor").value_or(false) ? 1 : 0;
    const auto draft_words = config.agreed<std::int64_t>("draft_vocab_size").value_or(spec.vocabulary);
    if (draft_words != spec.vocabulary) {
        throw_bad_input("{}: a pruned vocabulary ('draft_vocab_size' {} of {}) is not built", where, draft_words, spec.vocabulary);
    }
    // Servers take an absent key for "not causal".
    const bool causal = !config.agreed<bool>("sliding_window_non_causal").value_or(true);
    const auto kinds = read_layer_kinds(body.top, inside, false);
    const auto window = json_get_or<std::int64_t>(body.top, "sliding_window", 0, inside);
    if (any_sliding(kinds) && window == 0) throw_bad_input("{}: sliding-window layers, but no 'sliding_window'", inside);
    spec.layers = make_layers(kinds, window, {false, causal});
    spec.owns_embedding = true;
    spec.owns_head = true;
    return spec;
}

// 1000000 and not 1000000.0, as in published files.
Json plain_number(double value) {
    if (std::floor(value) == value && std::abs(value) < 1e15) return static_cast<std::int64_t>(value);
    return value;
}

std::vector<std::string> layer_type_names(const DraftSpec& spec) {
    std::vector<std::string> names;
    for (const DraftLayerSpec& layer : spec.layers) {
        names.emplace_back(layer.kind == DraftLayerKind::kSlidingAttention ? "sliding_attention" : "full_attention");
    }
    return names;
}

// The window of the sliding layers, 0 without any. The published layouts know one for all.
std::int64_t common_window(const DraftSpec& spec) {
    std::int64_t window = 0;
    for (const DraftLayerSpec& layer : spec.layers) {
        if (layer.kind != DraftLayerKind::kSlidingAttention) continue;
        if (window != 0 && window != layer.window) {
            throw_bad_input("sliding layers of different windows ({} and {}) cannot be written to a config", window, layer.window);
        }
        window = layer.window;
    }
    return window;
}

// The body of a Qwen3 config, which both layouts share.
Json qwen3_body(const DraftSpec& spec, const TargetConfig& target) {
    const std::int64_t window = common_window(spec);
    Json body;
    body["attention_bias"] = false;
    body["attention_dropout"] = 0.0;
    body["bos_token_id"] = nullptr;
    body["eos_token_id"] = target.end_tokens.empty() ? Json(nullptr) : Json(target.end_tokens.front());
    if (target.pad_token >= 0) body["pad_token_id"] = target.pad_token;
    body["head_dim"] = spec.head_dim;
    body["hidden_act"] = "silu";
    body["hidden_size"] = spec.hidden;
    body["initializer_range"] = 0.02;
    body["intermediate_size"] = spec.intermediate;
    body["layer_types"] = layer_type_names(spec);
    body["max_position_embeddings"] = spec.max_positions;
    body["max_window_layers"] = spec.num_layers();
    body["model_type"] = "qwen3";
    body["num_attention_heads"] = spec.heads;
    body["num_hidden_layers"] = spec.num_layers();
    body["num_key_value_heads"] = spec.kv_heads;
    body["rms_norm_eps"] = spec.rms_norm_eps;
    body["rope_scaling"] = nullptr;
    body["rope_theta"] = plain_number(spec.rope_theta);
    body["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
    body["tie_word_embeddings"] = false;
    body["use_cache"] = true;
    body["use_sliding_window"] = window > 0;
    body["vocab_size"] = spec.vocabulary;
    return body;
}

// is_causal where the layers are not what servers assume of their kind; it holds for all layers at once.
void write_causality(const DraftSpec& spec, Json& config) {
    bool as_assumed = true;
    bool all_equal = true;
    for (const DraftLayerSpec& layer : spec.layers) {
        as_assumed = as_assumed && layer.causal_block == (layer.kind == DraftLayerKind::kSlidingAttention);
        all_equal = all_equal && layer.causal_block == spec.layers.front().causal_block;
    }
    if (as_assumed) return;
    if (!all_equal) throw_bad_input("this mixture of causal and bidirectional blocks over the layers cannot be written to a config");
    config["is_causal"] = spec.layers.front().causal_block;
}

}  // namespace

DraftSpec parse_draft_config(const Json& json, const std::string& where) {
    const DraftConfigReader config(json, where);
    refuse_other_kinds(config);
    const bool speculators = config.has("speculators_model_type") || config.has("speculators_config");
    if (!speculators) refuse_unbuilt_options(config);
    DraftSpec spec = speculators ? parse_speculators(config) : parse_published(config);
    check_draft_spec(spec, where);
    return spec;
}

DraftSpec read_draft_spec(const std::string& folder_or_config) {
    const bool folder = std::filesystem::is_directory(folder_or_config);
    const std::string path = folder ? folder_or_config + "/config.json" : folder_or_config;
    if (folder && std::filesystem::exists(folder_or_config + "/draft/config.json")) {
        throw_bad_input("{} is a run or a checkpoint: its drafter is {}/draft", folder_or_config, folder_or_config);
    }
    return parse_draft_config(read_json_file(path), path);
}

DraftSpec overlay_draft_config(const DraftSpec& spec, const TargetConfig& target, const std::string& file) {
    const Json overlay = read_json_file(file);
    if (overlay.is_object() && (present(overlay, "speculators_model_type") || present(overlay, "speculators_config"))) {
        return parse_draft_config(overlay, file);
    }
    const DraftConfigReader reader(overlay, file);  // says so when the file holds no object
    DraftSpec base = spec;
    if (present(overlay, "num_hidden_layers") && !present(overlay, "layer_types")) {
        // The default's pattern over another number of layers: all but the last are like the first.
        const auto count = positive(overlay, "num_hidden_layers", file);
        const DraftLayerSpec last = base.layers.back();
        base.layers.assign(static_cast<std::size_t>(count), base.layers.front());
        base.layers.back() = last;
    }
    Json merged = draft_spec_to_config_json(base, target);
    // What the file may spell in another place must not meet the default's value there.
    for (const char* key : {"block_size"}) {
        if (present(reader.inner, key)) merged.erase(key);
    }
    for (const char* key : {"mask_token_id", "target_layer_ids"}) {
        if (present(overlay, key)) merged["dflash_config"].erase(key);
    }
    if (present(overlay, "rope_parameters")) merged.erase("rope_theta");
    if (present(overlay, "layer_types") && !present(overlay, "use_sliding_window")) merged.erase("use_sliding_window");
    merged.merge_patch(overlay);
    return parse_draft_config(merged, file);
}

Json draft_spec_to_config_json(const DraftSpec& spec, const TargetConfig& target) {
    Json config = qwen3_body(spec, target);
    config["architectures"] = {"DFlashDraftModel"};
    config["auto_map"] = {{"AutoModel", "dflash.DFlashDraftModel"}};
    config["block_size"] = spec.block_size;
    config["dflash_config"] = {{"mask_token_id", spec.mask_token}, {"target_layer_ids", spec.taps}};
    if (spec.alignment_shift == 1) config["dflash_config"]["sample_from_anchor"] = true;
    config["dtype"] = "bfloat16";
    config["num_target_layers"] = target.layers;
    write_causality(spec, config);
    return config;
}

Json draft_spec_to_speculators_json(const DraftSpec& spec, const TargetConfig& target) {
    const DraftLayerSpec& first = spec.layers.front();
    for (const DraftLayerSpec& layer : spec.layers) {
        if (!(layer == first)) {
            throw_bad_input(
                "the speculators layout cannot express layers of different attention kinds: export to the dflash layout instead");
        }
    }
    if (first.kind == DraftLayerKind::kFullAttention && first.causal_block) {
        throw_bad_input("the speculators layout cannot express full-attention layers with causal blocks");
    }
    std::vector<std::int64_t> state_ids;
    for (const std::int64_t tap : spec.taps) state_ids.push_back(tap + 1);
    const std::int64_t drafts = spec.block_size - spec.first_weighted_slot();
    Json config;
    config["architectures"] = {"DFlashDraftModel"};
    config["speculators_model_type"] = "dflash";
    config["speculators_config"] = {
        {"algorithm", "dflash"},
        {"default_proposal_method", "greedy"},
        {"proposal_methods",
         {{{"proposal_type", "greedy"}, {"speculative_tokens", drafts}, {"verifier_accept_k", 1}, {"accept_tolerance", 0.0}}}},
        {"verifier", {{"name_or_path", nullptr}, {"architectures", {target.architecture}}}}};
    config["transformer_layer_config"] = qwen3_body(spec, target);
    config["draft_vocab_size"] = spec.vocabulary;
    config["block_size"] = spec.block_size;
    config["target_hidden_size"] = target.hidden;
    config["aux_hidden_state_layer_ids"] = state_ids;
    config["mask_token_id"] = spec.mask_token;
    config["sample_from_anchor"] = spec.alignment_shift == 1;
    config["sliding_window_non_causal"] = !first.causal_block;
    config["dtype"] = "bfloat16";
    return config;
}

}  // namespace dflash
