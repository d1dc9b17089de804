// SPDX-License-Identifier: MIT
#include "cli/decoding_flags.h"

#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "cli/words.h"
#include "data/chat.h"
#include "draft/provenance.h"
#include "io/json.h"
#include "io/line_file.h"
#include "tensor/device_choice.h"

namespace dflash::cli {
namespace {

constexpr std::int64_t kPrefillRows = 2048;  // of a prompt at once: bounds the scratch that long prompts need

bool is_on(const std::string& thinking) { return thinking == "on"; }

// A setting of the drafter's training, empty where it says nothing.
std::string trained_with(const Json& training, const std::string& key) {
    const auto found = training.find(key);
    if (found == training.end()) return "";
    if (found->is_boolean()) return found->get<bool>() ? "on" : "off";
    return found->is_string() ? found->get<std::string>() : "";
}

std::string given_or_trained(const std::optional<std::string>& given, const Json& training, const std::string& key,
                             const std::string& fallback) {
    const std::string trained = trained_with(training, key);
    if (!given) return trained.empty() ? fallback : trained;
    if (!trained.empty() && *given != "auto" && *given != trained) {
        log_warning("[generate] --{} {}, but the drafter was trained with {}: fewer drafts will be accepted", key, *given, trained);
    }
    return *given;
}

}  // namespace

void add_decoding_flags(CLI::App& command, DecodingFlags& flags, bool draft_required) {
    command.add_option("--target", flags.target, "folder of the target: config.json, weights, tokenizer.json")->required();
    auto* draft = command.add_option("--draft", flags.draft, "folder of the drafter");
    if (draft_required) draft->required();
    command.add_flag("--allow-target-mismatch", flags.allow_target_mismatch, "use a drafter that was trained for another target");
    command.add_option("--template", flags.chat_template, "auto, chatml, qwen3, qwen3.5 or llama3; default: the drafter's, else auto");
    command.add_option("--thinking", flags.thinking, "on or off; default: the drafter's, else off")->check(CLI::IsMember({"on", "off"}));
    command.add_option("--system", flags.system, "system text for chats that have none");
    command.add_option("--max-new-tokens", flags.max_new_tokens, "most tokens to decode for a prompt")
        ->check(not_negative())
        ->capture_default_str();
    command.add_option("--temperature", flags.sampling.temperature, "0: greedy")->capture_default_str();
    command.add_option("--top-k", flags.sampling.top_k, "draw from the k likeliest tokens; 0: all")->capture_default_str();
    command.add_option("--top-p", flags.sampling.top_p, "draw from the likeliest tokens that make up this share")->capture_default_str();
    command.add_option("--seed", flags.sampling.seed, "of the random numbers")->capture_default_str();
    command.add_option("--limit", flags.limit, "take the first rows only; 0: all")->check(not_negative())->capture_default_str();
    command.add_option("--threads", flags.threads, "of the CPU; 0: all")->check(between(0, kMaxThreads))->capture_default_str();
    command.add_option("--device", flags.device, "auto (a GPU where there is one), cpu or cuda")
        ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
        ->capture_default_str();
}

void apply_decoding_flags(const DecodingFlags& flags) {
    check_sampling(flags.sampling);
    if (flags.threads > 0) omp_set_num_threads(flags.threads);
}

Tokenizer read_tokenizer(const std::string& target_folder) { return Tokenizer(target_folder + "/tokenizer.json"); }

ChatTemplate resolve_chat_template(const DecodingFlags& flags) {
    const Json training = flags.draft.empty() ? Json::object() : read_draft_provenance(flags.draft).training;
    ChatTemplate chat_template;
    chat_template.kind = resolve_template(given_or_trained(flags.chat_template, training, "template", "auto"), flags.target);
    chat_template.thinking = is_on(given_or_trained(flags.thinking, training, "thinking", "off"));
    chat_template.system = flags.system.value_or(trained_with(training, "system"));
    return chat_template;
}

std::vector<Prompt> read_prompts(const std::string& path, std::int64_t limit, const ChatTemplate& chat_template,
                                 const Tokenizer& tokenizer) {
    std::ifstream file = open_line_file(path, "prompts");
    std::vector<Prompt> prompts;
    std::string line;
    for (std::int64_t number = 1; std::getline(file, line); ++number) {
        if (limit > 0 && static_cast<std::int64_t>(prompts.size()) == limit) break;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const std::string where = path + " line " + std::to_string(number);
        const ChatRow row = parse_chat_row(line, where);
        try {
            prompts.push_back({row.id, render_prompt(row, chat_template, tokenizer)});
        } catch (const Error& error) {
            throw Error(error.kind(), where + ": " + error.what());
        }
        if (prompts.back().ids.empty()) throw_bad_input("{}: the prompt is empty", where);
    }
    if (prompts.empty()) throw_bad_input("{} holds no prompts", path);
    return prompts;
}

GeneratorSettings sizes_for(std::int64_t longest_prompt, std::int64_t max_new_tokens, const TargetConfig& target) {
    GeneratorSettings settings;
    const std::int64_t prompt = std::min(longest_prompt, target.max_positions - 1);
    settings.max_tokens = prompt + std::clamp<std::int64_t>(max_new_tokens, 1, target.max_positions - prompt);
    settings.max_prompt = std::min(prompt, kPrefillRows);
    return settings;
}

GeneratorSettings generator_settings(const std::vector<Prompt>& prompts, std::int64_t max_new_tokens, const TargetConfig& target) {
    std::int64_t longest = 1;
    for (const Prompt& prompt : prompts) {
        const auto tokens = static_cast<std::int64_t>(prompt.ids.size());
        if (tokens >= target.max_positions) {
            throw_bad_input("prompt {} has {} tokens: the target has {} positions", prompt.id, tokens, target.max_positions);
        }
        longest = std::max(longest, tokens);
    }
    return sizes_for(longest, max_new_tokens, target);
}

DecodingOptions decoding_options(const DecodingFlags& flags, const GeneratorSettings& generator) {
    DecodingOptions options;
    options.target = flags.target;
    options.draft = flags.draft;
    options.allow_target_mismatch = flags.allow_target_mismatch;
    options.device = choose_device(flags.device);
    options.generator = generator;
    options.generator.device = options.device;
    options.generator.record = true;
    return options;
}

GenerateSettings generate_settings(const DecodingFlags& flags, const TargetConfig& target, std::uint64_t prompt_number) {
    GenerateSettings settings;
    settings.max_new_tokens = flags.max_new_tokens;
    settings.sampling = flags.sampling;
    settings.sampling.prompt = prompt_number;
    settings.end_tokens = target.end_tokens;
    return settings;
}

}  // namespace dflash::cli
