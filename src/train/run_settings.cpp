// SPDX-License-Identifier: MIT
#include "train/run_settings.h"

#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/byte_size.h"
#include "base/error.h"

namespace dflash {
namespace {

using Json = nlohmann::json;

template <typename Field>
bool json_holds(const Json& value, const Field&) {
    if constexpr (std::is_same_v<Field, bool>) return value.is_boolean();
    if constexpr (std::is_same_v<Field, std::int64_t>) return value.is_number_integer();
    if constexpr (std::is_same_v<Field, double>) return value.is_number();
    if constexpr (std::is_same_v<Field, std::string>) return value.is_string();
    if constexpr (std::is_same_v<Field, std::vector<std::int64_t>>) {
        if (!value.is_array()) return false;
        for (const Json& item : value) {
            if (!item.is_number_integer()) return false;
        }
        return true;
    }
    return false;
}

void check_range(const char* key, std::int64_t value, std::int64_t low, std::int64_t high) {
    if (value < low || value > high) throw_bad_input("--{} is {}; it must be {} to {}", key, value, low, high);
}

void check_real(const char* key, double value, double low, double high) {
    if (!(value >= low && value <= high)) throw_bad_input("--{} is {}; it must be {} to {}", key, value, low, high);
}

void check_choice(const char* key, const std::string& value, std::initializer_list<const char*> choices) {
    std::string list;
    for (const char* choice : choices) {
        if (value == choice) return;
        list += (list.empty() ? "" : ", ") + std::string(choice);
    }
    throw_bad_input("--{} is '{}'; it must be one of: {}", key, value, list);
}

void check_numbers(const RunSettings& s) {
    constexpr std::int64_t kMany = std::int64_t{1} << 40;
    check_range("epochs", s.epochs, 1, 1000000);
    check_range("steps", s.steps, 0, kMany);
    check_range("token-budget", s.token_budget, 2, std::int64_t{1} << 24);
    check_range("max-length", s.max_length, 0, s.token_budget);
    check_range("max-anchors", s.max_anchors, 1, std::int64_t{1} << 24);
    check_range("block-size", s.block_size, 2, 64);
    check_range("draft-layers", s.draft_layers, 1, 256);
    check_range("sliding-window", s.sliding_window, -1, std::int64_t{1} << 30);
    check_range("mask-token-id", s.mask_token_id, -1, (std::int64_t{1} << 31) - 1);
    check_range("loss-chunk", s.loss_chunk, 1, std::int64_t{1} << 24);
    check_range("accumulate", s.accumulate, 1, 1000000);
    check_range("eval-every", s.eval_every, 0, kMany);
    check_range("eval-count", s.eval_count, 0, 100000);
    check_range("eval-new-tokens", s.eval_new_tokens, 1, std::int64_t{1} << 20);
    check_range("save-every", s.save_every, 0, kMany);
    check_range("keep", s.keep, 1, 1000000);
    check_range("log-every", s.log_every, 1, kMany);
    check_range("seed", s.seed, 0, std::int64_t{1} << 62);
    check_range("threads", s.threads, 0, 4096);
    check_real("decay-gamma", s.decay_gamma, 0, 1e6);
    check_real("dpace-alpha", s.dpace_alpha, 0, 1);
    check_real("lr", s.lr, 0, 10);
    check_real("warmup-ratio", s.warmup_ratio, 0, 1);
    check_real("max-grad-norm", s.max_grad_norm, 0, 1e12);
}

// Choices of the design whose code is not in this build.
void refuse_not_built(const RunSettings& s) {
    if (s.dp_pairs != 1) throw_bad_input("--dp-pairs {}: this binary is built without MPI; it trains one pair", s.dp_pairs);
    if (s.placement != "shared") throw_bad_input("--placement {}: it needs two devices; on the CPU it is shared", s.placement);
    if (s.grad_dtype == "bf16" && s.device == "cpu") throw_bad_input("--grad-dtype bf16: gradients are f32 on the CPU; use auto");
}

}  // namespace

Json settings_to_json(const RunSettings& settings) {
    Json object = Json::object();
    visit_settings(settings, [&](const char* key, SettingScope, const auto& field, const char*) { object[key] = field; });
    return object;
}

RunSettings settings_from_json(const Json& object, const std::string& where) {
    if (!object.is_object()) throw_bad_input("{}: the settings are no JSON object", where);
    RunSettings settings;
    std::set<std::string> known;
    visit_settings(settings, [&](const char* key, SettingScope, auto& field, const char*) {
        known.insert(key);
        const auto found = object.find(key);
        if (found == object.end()) return;
        if (!json_holds(*found, field)) throw_bad_input("{}: setting '{}' has the wrong type: {}", where, key, found->dump());
        field = found->get<std::remove_reference_t<decltype(field)>>();
    });
    for (const auto& item : object.items()) {
        if (known.count(item.key()) == 0) throw_bad_input("{}: unknown setting '{}'", where, item.key());
    }
    return settings;
}

void check_settings(const RunSettings& s) {
    check_numbers(s);
    check_choice("loss", s.loss, {"ce", "kl"});
    check_choice("weighting", s.weighting, {"dpace", "decay"});
    check_choice("optimizer", s.optimizer, {"adamw", "muon"});
    check_choice("recompute", s.recompute, {"none", "attention", "layer"});
    check_choice("grad-dtype", s.grad_dtype, {"auto", "f32", "bf16"});
    check_choice("placement", s.placement, {"shared", "split"});
    check_choice("device", s.device, {"auto", "cpu", "cuda"});
    check_choice("template", s.chat_template, {"auto", "chatml", "qwen3", "qwen3.5", "llama3"});
    check_choice("thinking", s.thinking, {"on", "off"});
    refuse_not_built(s);
    if (!s.memory.empty()) parse_bytes(s.memory, "--memory");
    if (!s.data.empty() && !s.features.empty()) throw_bad_input("--data and --features exclude each other: give one of them");
    if (s.is_given("decay-gamma") && s.weighting != "decay")
        throw_bad_input("--decay-gamma has no effect with --weighting {}", s.weighting);
    if (s.is_given("dpace-alpha") && s.weighting != "dpace")
        throw_bad_input("--dpace-alpha has no effect with --weighting {}", s.weighting);
    if (!s.init_from.empty() && !s.draft_config.empty()) {
        throw_bad_input("--init-from and --draft-config exclude each other: the drafter's own config.json decides");
    }
}

RunSettings resume_settings(const RunSettings& recorded, const RunSettings& asked) {
    RunSettings merged = recorded;
    merged.given = asked.given;
    merged.resume = true;
    const Json wanted = settings_to_json(asked);
    visit_settings(merged, [&](const char* key, SettingScope scope, auto& field, const char*) {
        if (!asked.is_given(key)) return;
        const auto value = wanted.at(key).get<std::remove_reference_t<decltype(field)>>();
        if (scope == SettingScope::kCurve && value != field) {
            throw_bad_input("--resume: --{} was {} in this run and is {} now; leave it out, or start a new run", key, Json(field).dump(),
                            Json(value).dump());
        }
        field = value;
    });
    return merged;
}

std::vector<std::string> describe_settings(const RunSettings& settings) {
    std::vector<std::string> lines;
    const Json defaults = settings_to_json(RunSettings{});
    visit_settings(settings, [&](const char* key, SettingScope, const auto& field, const char*) {
        const Json value = field;
        const bool is_default = value == defaults.at(key);
        const bool unset = value.empty() || value == "";
        if (is_default && unset) return;
        const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
        lines.push_back(fmt::format("--{} {}{}", key, text, is_default ? " (default)" : ""));
    });
    return lines;
}

}  // namespace dflash
