// SPDX-License-Identifier: MIT
#include "train/run_inputs.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "data/chat.h"
#include "generate/decoding_setup.h"
#include "io/line_file.h"
#include "io/tokenizer.h"
#include "kernels/context.h"
#include "model/target_weights.h"
#include "target/features_folder.h"
#include "tensor/device_choice.h"
#include "train/draft_choice.h"

namespace dflash {
namespace {

bool is_jsonl(const std::string& path) { return std::filesystem::is_regular_file(path); }

// A prepared folder as it is; a JSONL file is prepared in memory.
Dataset open_data(const RunSettings& settings, const std::string& path) {
    if (!is_jsonl(path)) return Dataset(path);
    const ChatTemplate chat_template = {resolve_template(settings.chat_template, settings.target), settings.thinking == "on",
                                        settings.system};
    const std::int64_t length = settings.max_length > 0 ? settings.max_length : settings.token_budget;
    Dataset data =
        Dataset::from_jsonl({.inputs = {path}, .target = settings.target, .out = {}, .chat_template = chat_template, .max_length = length});
    const PrepareReport& report = data.report();
    log_info("[data] {}: {} of {} rows used, {} truncated", path, report.rows_used, report.rows_in, report.rows_truncated);
    for (const auto& [reason, rows] : report.refused) log_info("[data] {} rows refused: {}", rows, reason);
    return data;
}

void check_document(const DocumentView& document, const RunInputs& inputs, const std::string& where) {
    for (const std::int32_t id : document.ids) {
        if (id == inputs.draft.mask_token) {
            throw_bad_input("{} contains token {}, the drafter's mask token: choose another --mask-token-id", where, id);
        }
        if (id < 0 || id >= inputs.target.vocabulary) {
            throw_bad_input("{} contains token {}, outside the target's vocabulary of {}: was it prepared for this target?", where, id,
                            inputs.target.vocabulary);
        }
        if (std::find(inputs.target.forbidden_tokens.begin(), inputs.target.forbidden_tokens.end(), id) !=
            inputs.target.forbidden_tokens.end()) {
            throw_bad_input("{} contains token {}, an image or video placeholder: text data only", where, id);
        }
    }
}

void check_dataset(const Dataset& data, const std::string& path, const RunInputs& inputs, const std::string& tokenizer_fingerprint) {
    if (data.tokenizer_fingerprint() != tokenizer_fingerprint) {
        throw_bad_input("{} was prepared with another tokenizer than {}/tokenizer.json: prepare it again for this target", path,
                        inputs.settings.target);
    }
    const RunSettings& settings = inputs.settings;
    std::int64_t longest = 0;
    for (std::int64_t row = 0; row < data.documents(); ++row) {
        const DocumentView document = data.document(row);
        longest = std::max(longest, static_cast<std::int64_t>(document.ids.size()));
        check_document(document, inputs, fmt::format("{}: document {}", path, data.document_id(row)));
    }
    if (std::min(longest, settings.token_budget) > inputs.target.max_positions) {
        throw_bad_input("{} has documents of {} tokens; the target has {} positions: prepare it with --max-length {}", path, longest,
                        inputs.target.max_positions, inputs.target.max_positions);
    }
}

// The part of a held-out document before the assistant's first token.
std::vector<std::int32_t> prompt_of(const DocumentView& document) {
    const auto first = std::find(document.loss_mask.begin(), document.loss_mask.end(), std::uint8_t{1});
    return {document.ids.begin(), document.ids.begin() + (first - document.loss_mask.begin())};
}

std::vector<std::vector<std::int32_t>> prompts_of_file(const RunInputs& inputs) {
    const std::string& path = inputs.settings.eval_prompts;
    std::ifstream file = open_line_file(path, "prompts (--eval-prompts)");
    const Tokenizer tokenizer(inputs.settings.target + "/tokenizer.json");
    std::vector<std::vector<std::int32_t>> prompts;
    std::string line;
    for (std::int64_t number = 1; std::getline(file, line); ++number) {
        if (static_cast<std::int64_t>(prompts.size()) == inputs.settings.eval_count) break;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        prompts.push_back(render_prompt(parse_chat_row(line, fmt::format("{} line {}", path, number)), inputs.chat_template, tokenizer));
    }
    if (prompts.empty() && inputs.settings.eval_count > 0) throw_bad_input("--eval-prompts: {} holds no prompts", path);
    return prompts;
}

std::vector<std::vector<std::int32_t>> evaluation_prompts(const RunInputs& inputs) {
    std::vector<std::vector<std::int32_t>> prompts;
    if (!inputs.settings.eval_prompts.empty()) {
        prompts = prompts_of_file(inputs);
    } else if (inputs.validation) {
        const std::int64_t count = std::min(inputs.settings.eval_count, inputs.validation->documents());
        for (std::int64_t row = 0; row < count; ++row) prompts.push_back(prompt_of(inputs.validation->document(row)));
    }
    const std::int64_t room = std::min(inputs.settings.token_budget, inputs.target.max_positions - inputs.draft.block_size - 1);
    const auto unfit = [&](const auto& prompt) { return prompt.empty() || static_cast<std::int64_t>(prompt.size()) > room; };
    const auto kept = std::remove_if(prompts.begin(), prompts.end(), unfit);
    if (kept != prompts.end()) log_warning("[eval] {} prompts are empty or longer than {} tokens and left out", prompts.end() - kept, room);
    prompts.erase(kept, prompts.end());
    return prompts;
}

void resolve_automatic(RunSettings& settings) {
    const Device device = choose_device(settings.device);
    settings.device = device_type_name(device);
    if (settings.grad_dtype == "bf16" && device.type == DeviceType::kCpu) {
        throw_bad_input("--grad-dtype bf16: gradients are f32 on the CPU; use auto");
    }
    if (settings.threads == 0) settings.threads = cpu_threads();
}

}  // namespace

void check_run_paths(const RunSettings& settings) {
    if (settings.out.empty()) throw_bad_input("--out is missing: the run folder to make");
    if (settings.target.empty()) throw_bad_input("--target is missing: the folder of the frozen target");
    if (settings.data.empty() && settings.features.empty()) throw_bad_input("--data is missing: a prepared folder or a chat JSONL");
    for (const auto& [key, path] : {std::pair{"target", settings.target},
                                    {"data", settings.data},
                                    {"features", settings.features},
                                    {"val-data", settings.val_data},
                                    {"eval-prompts", settings.eval_prompts},
                                    {"init-from", settings.resumed_draft.empty() ? settings.init_from : ""},
                                    {"draft-config", settings.resumed_draft.empty() ? settings.draft_config : ""}}) {
        if (!path.empty() && !std::filesystem::exists(path)) throw_bad_input("--{}: {} does not exist", key, path);
    }
    for (const char* key : {"template", "thinking", "system", "max-length"}) {
        if (settings.is_given(key) && !settings.resume && !is_jsonl(settings.data) && !is_jsonl(settings.val_data)) {
            throw_bad_input("--{} is for chat JSONL files; the data is prepared already: give it to `dflash prepare`", key);
        }
    }
    if (!settings.features.empty() && !settings.eval_prompts.empty()) {
        throw_bad_input("--eval-prompts needs the whole target, and with --features only its embedding and head are loaded");
    }
}

std::int32_t tokenizer_mask_token(const std::string& target_folder) {
    const std::string path = target_folder + "/tokenizer.json";
    if (!std::filesystem::exists(path)) return -1;
    const Tokenizer tokenizer(path);
    for (const char* name : {"<|mask|>", "<|MASK|>"}) {
        if (const std::optional<std::int32_t> id = tokenizer.token_id(name)) return *id;
    }
    return -1;
}

RunInputs read_run_configs(const RunSettings& settings) {
    RunInputs inputs;
    inputs.settings = settings;
    inputs.target = read_target_config(settings.target);
    inputs.draft = choose_draft_spec(settings, inputs.target, tokenizer_mask_token(settings.target));
    inputs.target_fingerprint = target_fingerprint(settings.target);
    if (!settings.init_from.empty() && settings.resumed_draft.empty())
        check_draft_provenance(settings.init_from, settings.target, /*allow=*/false);
    resolve_automatic(inputs.settings);
    return inputs;
}

void open_run_data(RunInputs& inputs) {
    const RunSettings& settings = inputs.settings;
    const std::string tokenizer = Tokenizer(settings.target + "/tokenizer.json").fingerprint();
    const bool stored = !settings.features.empty();
    const std::string data = stored ? features_data_folder(settings.features) : settings.data;
    inputs.data.emplace(open_data(settings, data));
    inputs.chat_template = inputs.data->chat_template();
    inputs.data_fingerprint = inputs.data->fingerprint();
    check_dataset(*inputs.data, data, inputs, tokenizer);
    if (!settings.val_data.empty()) {
        const std::string held_out = stored ? features_data_folder(settings.val_data) : settings.val_data;
        inputs.validation.emplace(open_data(settings, held_out));
        check_dataset(*inputs.validation, held_out, inputs, tokenizer);
        if (!(inputs.validation->chat_template() == inputs.chat_template)) {
            throw_bad_input("--val-data {} was prepared with another template, thinking mode or system text than the training data",
                            settings.val_data);
        }
    }
    if (!settings.init_from.empty() && settings.resumed_draft.empty()) check_same_template(settings.init_from, inputs.chat_template);
    if (!stored) inputs.prompts = evaluation_prompts(inputs);
}

}  // namespace dflash
