// SPDX-License-Identifier: MIT
#include "cli/inspect_report.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include "base/byte_size.h"
#include "base/error.h"
#include "draft/draft_spec.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/text.h"
#include "model/checkpoint_names.h"
#include "model/target_config.h"
#include "model/target_weights.h"

namespace dflash::cli {

namespace {

namespace fs = std::filesystem;

std::string in_folder(const std::string& folder, const std::string& name) { return (fs::path(folder) / name).string(); }
bool has_file(const std::string& folder, const std::string& name) { return path_exists(in_folder(folder, name)); }
bool is_folder(const std::string& path) {
    std::error_code unknown;
    return fs::is_directory(path, unknown);
}

std::vector<std::string> list_folder(const std::string& folder) {
    std::vector<std::string> names;
    std::error_code unread;
    for (fs::directory_iterator it(folder, unread), end; !unread && it != end; it.increment(unread)) {
        names.push_back(it->path().filename().string());
    }
    if (unread) throw_bad_input("{}: cannot be read: {}", folder, unread.message());
    std::sort(names.begin(), names.end());
    return names;
}

bool has_weights(const std::string& folder) {
    const std::vector<std::string> names = list_folder(folder);
    return std::any_of(names.begin(), names.end(),
                       [](const std::string& name) { return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"); });
}

// Tensors, elements and bytes of a group.
struct Tally {
    std::int64_t tensors = 0, parameters = 0;
    std::size_t bytes = 0;
    std::map<std::string, std::int64_t> dtypes;

    void add(const SafetensorsEntry& entry) {
        ++tensors;
        parameters += entry.elements();
        bytes += entry.bytes;
        ++dtypes[entry.dtype];
    }
    Report report() const { return {{"tensors", tensors}, {"parameters", parameters}, {"bytes", bytes}, {"tensors_by_dtype", dtypes}}; }
};

Tally tally_all(const SafetensorsFolder& checkpoint) {
    Tally all;
    for (const std::string& name : checkpoint.names()) all.add(*checkpoint.find(name));
    return all;
}

// "layers.3.mlp.up_proj.weight" -> "layers.N.mlp.up_proj.weight"
std::string name_pattern(const std::string& name) {
    std::string pattern;
    std::size_t begin = 0;
    while (begin <= name.size()) {
        const std::size_t end = std::min(name.find('.', begin), name.size());
        const std::string part = name.substr(begin, end - begin);
        const bool is_number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
        pattern += (begin > 0 ? "." : "") + (is_number ? "N" : part);
        begin = end + 1;
    }
    return printable(pattern);
}

// One line for the tensors that share dtype, shape and name up to numbers.
Report tensor_patterns(const SafetensorsFolder& checkpoint) {
    std::map<std::string, std::int64_t> counts;
    for (const std::string& name : checkpoint.names()) {
        const SafetensorsEntry& entry = *checkpoint.find(name);
        ++counts[fmt::format("{} {} {}", name_pattern(name), entry.dtype, Json(entry.shape).dump())];
    }
    return counts;
}

Report describe_tensors(const SafetensorsFolder& checkpoint) {
    return {{"files", checkpoint.files().size()},
            {"all", tally_all(checkpoint).report()},
            {"metadata", checkpoint.files().front().metadata()},
            {"by_name_dtype_and_shape", tensor_patterns(checkpoint)}};
}

const char* group_name(TensorGroup group) {
    switch (group) {
        case TensorGroup::kEmbedding: return "embedding";
        case TensorGroup::kLayer: return "layers";
        case TensorGroup::kFinalNorm: return "final_norm";
        case TensorGroup::kHead: return "head";
        case TensorGroup::kVision: return "vision (skipped)";
        case TensorGroup::kMtp: return "mtp (skipped)";
        case TensorGroup::kOther: return "other (unused)";
    }
    return "?";
}

Report describe_target_weights(const std::string& folder, const TargetConfig& config) {
    const TargetLoadReport check = check_target_checkpoint(folder, config);
    const SafetensorsFolder checkpoint(folder);
    const CheckpointNames names(checkpoint);
    std::map<TensorGroup, Tally> groups;
    Tally text;
    for (const std::string& name : checkpoint.names()) {
        std::int64_t layer = -1;
        const TensorGroup group = names.group(name, layer);
        groups[group].add(*checkpoint.find(name));
        if (group <= TensorGroup::kHead) text.add(*checkpoint.find(name));
    }
    Report report = {{"files", checkpoint.files().size()}, {"all", tally_all(checkpoint).report()}, {"text_model", text.report()}};
    Report& by_group = report["by_group"] = Report::object();
    for (const auto& [group, tally] : groups) by_group[group_name(group)] = tally.report();
    report["warnings"] = check.warnings;
    report["fingerprint"] = target_fingerprint(folder);
    return report;
}

Report inspect_target(const std::string& path) {
    const TargetConfig config = read_target_config(path);
    const auto full = std::count(config.layer_kinds.begin(), config.layer_kinds.end(), TargetLayerKind::kFullAttention);
    Report report = {{"kind", "target"},
                     {"architecture", config.architecture},
                     {"model_type", config.model_type},
                     {"layers", config.layers},
                     {"full_attention_layers", full},
                     {"linear_attention_layers", config.layers - full},
                     {"hidden", config.hidden},
                     {"intermediate", config.intermediate},
                     {"heads", config.heads},
                     {"kv_heads", config.kv_heads},
                     {"head_dim", config.head_dim},
                     {"rotary_dims", config.rotary_dims},
                     {"rope_theta", config.rope_theta},
                     {"llama3_rope_scaling", config.rope_scaling.enabled},
                     {"rms_norm_eps", config.rms_norm_eps}};
    if (config.family == TargetFamily::kHybrid) {
        report["delta_rule"] = {{"key_heads", config.key_heads},
                                {"value_heads", config.value_heads},
                                {"key_dim", config.key_dim},
                                {"value_dim", config.value_dim},
                                {"convolution_taps", config.conv_taps},
                                {"output_gate", config.sigmoid_output_gate ? "sigmoid" : "silu"}};
    }
    report["vocabulary"] = config.vocabulary;
    report["max_positions"] = config.max_positions;
    report["tied_head"] = config.tied_head;
    report["end_token_ids"] = config.end_tokens;
    report["pad_token_id"] = config.pad_token < 0 ? Report(nullptr) : Report(config.pad_token);
    report["refused_token_ids"] = config.forbidden_tokens;
    if (is_folder(path) && has_weights(path)) report["weights"] = describe_target_weights(path, config);
    return report;
}

Report inspect_drafter(const std::string& path) {
    const DraftSpec spec = read_draft_spec(path);
    Report layers = Report::array();
    for (const DraftLayerSpec& layer : spec.layers) {
        layers.push_back(layer.kind == DraftLayerKind::kFullAttention ? "full" : fmt::format("sliding {} tokens", layer.window));
    }
    Report report = {{"kind", "drafter"},
                     {"block_size", spec.block_size},
                     {"target_layer_ids", spec.taps},
                     {"mask_token_id", spec.mask_token},
                     {"layers", spec.num_layers()},
                     {"layer_attention", layers},
                     {"alignment_shift", spec.alignment_shift},
                     {"hidden", spec.hidden},
                     {"intermediate", spec.intermediate},
                     {"heads", spec.heads},
                     {"kv_heads", spec.kv_heads},
                     {"head_dim", spec.head_dim},
                     {"rope_theta", spec.rope_theta},
                     {"rms_norm_eps", spec.rms_norm_eps},
                     {"max_positions", spec.max_positions},
                     {"vocabulary", spec.vocabulary},
                     {"target_layers", spec.target_layers},
                     {"own_embedding", spec.owns_embedding},
                     {"own_head", spec.owns_head}};
    if (!is_folder(path)) return report;
    if (has_weights(path)) report["weights"] = describe_tensors(SafetensorsFolder(path));
    if (has_file(path, "training.json")) report["training"] = Report::parse(read_json_file(in_folder(path, "training.json")).dump());
    return report;
}

bool is_drafter_config(const std::string& path) {
    const Json config = read_json_file(path);
    if (!config.is_object()) throw_bad_input("{}: is not an object", path);
    if (config.contains("dflash_config") || config.contains("speculators_model_type")) return true;
    const auto names = json_get_or<std::vector<std::string>>(config, "architectures", {}, path);
    return !names.empty() && names.front().find("DFlash") != std::string::npos;
}

Report inspect_model(const std::string& path) {
    const bool is_drafter = is_drafter_config(is_folder(path) ? in_folder(path, "config.json") : path);
    return is_drafter ? inspect_drafter(path) : inspect_target(path);
}

// Prepared data or stored features: what the manifest says, with its shards checked for presence and size.
Report inspect_manifest(const std::string& folder) {
    const std::string where = in_folder(folder, "manifest.json");
    const Json manifest = read_json_file(where);
    Report report = {{"kind", json_get<std::string>(manifest, "format", where)}};
    for (const auto& [key, value] : manifest.items()) {
        if (key == "format" || key == "shards") continue;
        const bool is_listing = value.is_array() && !value.empty() && value.front().is_object();  // such as the documents: counted
        report[key] = is_listing ? Report(value.size()) : Report::parse(value.dump());
    }
    const auto shards = manifest.find("shards");
    if (shards == manifest.end() || !shards->is_array()) throw_bad_input("{}: key 'shards' is not a list", where);
    std::int64_t bytes = 0;
    for (const Json& shard : *shards) {
        const std::string path = in_folder(folder, json_get<std::string>(shard, "file", where));
        const SafetensorsFile file(path);  // refuses a malformed one
        std::error_code unread;
        const auto found = static_cast<std::int64_t>(fs::file_size(path, unread));
        const auto recorded = json_get_or<std::int64_t>(shard, "bytes", found, where);
        if (unread || found != recorded) throw_bad_input("{}: has {} bytes, the manifest says {}", path, found, recorded);
        bytes += found;
    }
    report["shards"] = shards->size();
    report["bytes"] = bytes;
    return report;
}

Report inspect_checkpoint(const std::string& folder) {
    const Json state = read_json_file(in_folder(folder, "state.json"));
    Report report = {{"kind", "checkpoint"}, {"state", Report::parse(state.dump())}};
    report["optimizer"] = tally_all(SafetensorsFolder(folder)).report();
    report["draft"] = inspect_drafter(in_folder(folder, "draft"));
    return report;
}

// The last whole line of a JSONL file that says {"kind": kind}; a run may be writing behind it.
std::optional<Json> last_line(const std::string& path, const std::string& kind) {
    const std::string text = read_file(path);
    std::string_view rest = text;
    while (!rest.empty()) {
        const std::size_t end = rest.rfind('\n');
        if (end == std::string_view::npos) return {};
        const std::size_t before = end == 0 ? std::string_view::npos : rest.rfind('\n', end - 1);
        const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
        const std::string_view line = rest.substr(begin, end - begin);
        if (!line.empty()) {
            Json json = parse_json(line, path);
            if (json.is_object() && json.value("kind", "") == kind) return json;
        }
        rest = rest.substr(0, begin);
    }
    return {};
}

Report inspect_run(const std::string& folder) {
    Report report = {{"kind", "run"}};
    const std::string metrics = in_folder(folder, "metrics.jsonl");
    for (const char* kind : {"step", "eval"}) {
        const auto line = path_exists(metrics) ? last_line(metrics, kind) : std::nullopt;
        if (line) report[std::string("last_") + kind] = Report::parse(line->dump());
    }
    Report& checkpoints = report["checkpoints"] = Report::array();
    if (has_file(folder, "checkpoints")) {
        for (const std::string& name : list_folder(in_folder(folder, "checkpoints"))) {
            if (name.starts_with("step-")) checkpoints.push_back(name);
        }
    }
    if (has_file(folder, "draft")) report["draft"] = inspect_drafter(in_folder(folder, "draft"));
    if (has_file(folder, "config.json")) report["config"] = Report::parse(read_json_file(in_folder(folder, "config.json")).dump());
    return report;
}

Report inspect_folder(const std::string& folder) {
    if (has_file(folder, "metrics.jsonl") || has_file(folder, "checkpoints")) return inspect_run(folder);
    if (has_file(folder, "state.json") && has_file(folder, "draft")) return inspect_checkpoint(folder);
    if (has_file(folder, "manifest.json")) return inspect_manifest(folder);
    if (has_file(folder, "config.json")) return inspect_model(folder);
    if (!has_weights(folder)) {
        throw_bad_input("{}: holds no config.json, manifest.json, metrics.jsonl or *.safetensors: not a checkpoint, data set or run",
                        folder);
    }
    Report report = {{"kind", "tensors"}};
    report.update(describe_tensors(SafetensorsFolder(folder)));
    return report;
}

Report inspect_file(const std::string& path) {
    if (path.ends_with(".json")) return inspect_model(path);
    if (!path.ends_with(".safetensors")) throw_bad_input("{}: inspect knows *.safetensors, *.json and folders", path);
    const SafetensorsFile file(path);
    Tally all;
    Report tensors = Report::object();
    for (const auto& [name, entry] : file.entries()) {
        all.add(entry);
        tensors[printable(name)] = fmt::format("{} {}", entry.dtype, Json(entry.shape).dump());
    }
    return {{"kind", "tensors"}, {"all", all.report()}, {"metadata", file.metadata()}, {"by_name", tensors}};
}

// 1234567 -> "1,234,567"
std::string grouped_digits(std::int64_t value) {
    const std::string digits = std::to_string(value);
    std::string text;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        const bool starts_group = i > 0 && (digits.size() - i) % 3 == 0 && digits[i - 1] != '-';
        if (starts_group) text += ',';
        text += digits[i];
    }
    return text;
}

// "106 tensors, 6,070,816 parameters, 12.1 MB (BF16 106)"
std::string tally_text(const Report& tally) {
    std::string dtypes;
    for (const auto& [dtype, count] : tally["tensors_by_dtype"].items()) {
        dtypes += fmt::format("{}{} {}", dtypes.empty() ? "" : ", ", dtype, count.get<std::int64_t>());
    }
    return fmt::format("{} tensors, {} parameters, {} ({})", grouped_digits(tally["tensors"].get<std::int64_t>()),
                       grouped_digits(tally["parameters"].get<std::int64_t>()), format_bytes(tally["bytes"].get<std::size_t>()), dtypes);
}

std::string value_text(const std::string& key, const Report& value) {
    if (value.is_string()) return printable(value.get<std::string>());
    if (value.is_null()) return "none";
    if (value.is_number_float()) return fmt::format("{:g}", value.get<double>());
    if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
    if (value.is_number_integer()) {
        const auto number = value.get<std::int64_t>();
        if (key == "bytes" && number >= 0) return format_bytes(static_cast<std::size_t>(number));
        return key.ends_with("_id") || key.ends_with("_ids") || key == "seed" ? std::to_string(number) : grouped_digits(number);
    }
    if (!value.is_array()) return value.dump();
    std::string line;
    for (const Report& element : value) line += (line.empty() ? "" : ", ") + value_text(key, element);
    return line.empty() ? "none" : line;
}

}  // namespace

Report inspect_path(const std::string& path) {
    if (path.empty()) throw_bad_input("inspect: the path is empty: give a checkpoint, a data set, a run or a file of tensors");
    if (!path_exists(path)) throw_bad_input("{}: no such file or folder", path);
    return is_folder(path) ? inspect_folder(path) : inspect_file(path);
}

std::string report_text(const Report& report, int level) {
    const std::string indent(static_cast<std::size_t>(2 * level), ' ');
    std::string text;
    for (const auto& [key, value] : report.items()) {
        std::string label = printable(key);
        if (key.find('.') == std::string::npos) std::replace(label.begin(), label.end(), '_', ' ');  // dots: the name of a tensor
        if (value.contains("tensors_by_dtype")) {
            text += fmt::format("{}{}: {}\n", indent, label, tally_text(value));
        } else if (!value.is_object()) {
            text += fmt::format("{}{}: {}\n", indent, label, value_text(key, value));
        } else if (!value.empty()) {
            text += fmt::format("{}{}:\n{}", indent, label, report_text(value, level + 1));
        }
    }
    return text;
}

}  // namespace dflash::cli
