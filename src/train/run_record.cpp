// SPDX-License-Identifier: MIT
#include "train/run_record.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "train/attention_tuning.h"

namespace dflash {
namespace {

Json curve_settings(const RunSettings& settings) {
    Json object = Json::object();
    visit_settings(settings, [&](const char* key, SettingScope scope, const auto& field, const char*) {
        if (scope == SettingScope::kCurve) object[key] = field;
    });
    return object;
}

Json hashes_to_json(const RunHashes& hashes) {
    return {{"config", hashes.config}, {"data", hashes.data}, {"target", hashes.target}, {"draft", hashes.draft}};
}

void check_hashes(const Json& recorded, const RunHashes& now, const std::string& where) {
    constexpr std::pair<const char*, const char*> kWhat[] = {{"data", "the data set"},
                                                             {"target", "the target's weights or config"},
                                                             {"draft", "the drafter's config"},
                                                             {"config", "a setting of the curve"}};
    const Json current = hashes_to_json(now);
    for (const auto& [key, what] : kWhat) {
        const auto before = json_get<std::string>(recorded, key, where);
        if (before != current.at(key).get<std::string>()) {
            throw_bad_input("--resume: {} changed since the run was saved (hash '{}' in {}): restore it, or start a new run", what, key,
                            where);
        }
    }
}

}  // namespace

RunHashes run_hashes(const RunInputs& inputs) {
    return {sha256_hex(curve_settings(inputs.settings).dump()), inputs.data_fingerprint, inputs.target_fingerprint,
            sha256_hex(draft_spec_to_config_json(inputs.draft, inputs.target).dump())};
}

void write_run_record(const std::string& path, const RunInputs& inputs) {
    const Json record = {{"settings", settings_to_json(inputs.settings)},
                         {"draft", draft_spec_to_config_json(inputs.draft, inputs.target)},
                         {"hashes", hashes_to_json(run_hashes(inputs))},
                         {"attention", choices_to_json(inputs.attention)}};
    write_file_atomically(path, record.dump(2) + "\n");
}

RunSettings read_recorded_settings(const std::string& path) {
    const Json record = read_json_file(path);
    if (!record.is_object() || !record.contains("settings")) throw_bad_input("{}: no settings in it: not a run's config.json", path);
    return settings_from_json(record.at("settings"), path);
}

nlohmann::json read_recorded_attention(const std::string& path) {
    const Json record = read_json_file(path);
    return record.is_object() && record.contains("attention") ? record.at("attention") : Json::object();
}

void check_recorded_hashes(const std::string& path, const RunHashes& now) {
    const Json record = read_json_file(path);
    if (!record.contains("hashes")) throw_bad_input("{}: key 'hashes' is missing", path);
    check_hashes(record.at("hashes"), now, path);
}

void check_unchanged(const TrainState& saved, const RunHashes& now, const RunSettings& settings, const std::string& where) {
    check_hashes(hashes_to_json(saved.hashes), now, where + "/state.json");
    if (saved.seed != settings.seed) throw_bad_input("--resume: --seed was {} in {} and is {} now", saved.seed, where, settings.seed);
    if (saved.threads != settings.threads) {
        throw_bad_input("--resume: --threads was {} in {} and is {} now: sums would differ in the last bits", saved.threads, where,
                        settings.threads);
    }
}

DraftProvenance make_provenance(const RunInputs& inputs) {
    DraftProvenance provenance;
    provenance.training = {{"template", template_name(inputs.chat_template.kind)},
                           {"thinking", inputs.chat_template.thinking ? "on" : "off"},
                           {"system", inputs.chat_template.system},
                           {"alignment_shift", inputs.draft.alignment_shift},
                           {"target_fingerprint", inputs.target_fingerprint},
                           {"data_fingerprint", inputs.data_fingerprint},
                           {"settings", curve_settings(inputs.settings)}};
    return provenance;
}

std::string describe_draft(const DraftSpec& spec) {
    const auto is_full = [](const DraftLayerSpec& layer) { return layer.kind == DraftLayerKind::kFullAttention; };
    const auto full = std::count_if(spec.layers.begin(), spec.layers.end(), is_full);
    std::int64_t window = 0;
    for (const DraftLayerSpec& layer : spec.layers) window = std::max(window, layer.window);
    std::string layers = fmt::format("{} full layers", full);
    if (full < spec.num_layers()) layers = fmt::format("{} sliding layers (window {}) and {} full", spec.num_layers() - full, window, full);
    return fmt::format("block {}, {}, hidden {}, {}/{} heads of {}, feed-forward {}, target layers [{}], mask token {}", spec.block_size,
                       layers, spec.hidden, spec.heads, spec.kv_heads, spec.head_dim, spec.intermediate, fmt::join(spec.taps, ", "),
                       spec.mask_token);
}

}  // namespace dflash
