// SPDX-License-Identifier: MIT
// The flags that generate, eval and regenerate share, and what follows from them: the chat template, the prompts, the generator's sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/chat_template.h"
#include "generate/decoding_setup.h"
#include "io/tokenizer.h"
#include "model/target_config.h"

namespace CLI {
class App;
}

namespace dflash::cli {

struct DecodingFlags {
    std::string target;
    std::string draft;
    bool allow_target_mismatch = false;
    std::optional<std::string> chat_template, thinking, system;
    SamplingSettings sampling;
    std::int64_t max_new_tokens = 256;
    std::int64_t limit = 0;  // rows to take; 0 = all
    int threads = 0;
    std::string device = "auto";
};
void add_decoding_flags(CLI::App& command, DecodingFlags& flags, bool draft_required);

// Checks values that need no file, and sets the number of threads.
void apply_decoding_flags(const DecodingFlags& flags);
Tokenizer read_tokenizer(const std::string& target_folder);
// What is not given comes from the drafter's training.json, else from the target: a drafter is best at the texts it was trained on, so
// another template or thinking mode than its own is warned about.
ChatTemplate resolve_chat_template(const DecodingFlags& flags);

struct Prompt {
    std::string id;
    std::vector<std::int32_t> ids;
};
// Reads all rows before anything is decoded. Error(kBadInput) names the file and line.
std::vector<Prompt> read_prompts(const std::string& path, std::int64_t limit, const ChatTemplate& chat_template,
                                 const Tokenizer& tokenizer);

// Caches for the longest prompt and the new tokens, within the target's positions.
GeneratorSettings sizes_for(std::int64_t longest_prompt, std::int64_t max_new_tokens, const TargetConfig& target);
// The same for these prompts; Error(kBadInput) names one that does not fit.
GeneratorSettings generator_settings(const std::vector<Prompt>& prompts, std::int64_t max_new_tokens, const TargetConfig& target);
DecodingOptions decoding_options(const DecodingFlags& flags, const GeneratorSettings& generator);
GenerateSettings generate_settings(const DecodingFlags& flags, const TargetConfig& target, std::uint64_t prompt_number);

}  // namespace dflash::cli
