// SPDX-License-Identifier: MIT
// `dflash generate`: texts from the target, alone or with a drafter. Without a drafter each verify step commits one token, so verify_steps
// counts plain steps and acceptance_length is 1; it is null where the prompt's own pass gave all tokens.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/command.h"
#include "cli/decoding_flags.h"
#include "cli/progress_line.h"
#include "data/chat.h"
#include "generate/text_stream.h"

namespace dflash::cli {
namespace {

struct GenerateFlags {
    DecodingFlags decoding;
    std::string prompts;
    std::string prompt;  // raw text
    std::string chat;    // a user's message
    bool json = false;
};

void write_line(const std::string& line) {
    if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size() || std::fputc('\n', stdout) == EOF || std::fflush(stdout) != 0) {
        throw_failed("standard output cannot be written");
    }
}

std::string json_line(const Prompt& prompt, const GenerateResult& result, const std::string& text) {
    nlohmann::ordered_json row;
    row["id"] = prompt.id;
    row["prompt_ids"] = prompt.ids;
    row["output_ids"] = result.output_ids;
    row["text"] = text;
    row["verify_steps"] = result.verify_steps;
    row["acceptance_length"] = result.verify_steps > 0 ? nlohmann::ordered_json(result.acceptance_length()) : nullptr;
    return row.dump();
}

void print_speed(const GenerateResult& result) {
    const double seconds = result.decode_ms / 1e3;
    fmt::print(stderr, "{} tokens; prompt {:.0f} ms", result.output_ids.size(), result.prefill_ms);
    if (result.verify_steps > 0) {
        fmt::print(stderr, "; {:.1f} tokens/s; acceptance length {:.2f} tokens a verify step ({} steps)",
                   static_cast<double>(result.verified_tokens) / seconds, result.acceptance_length(), result.verify_steps);
    }
    fmt::print(stderr, "\n");
}

// The one prompt of --prompt or --chat.
Prompt prompt_of_flags(const GenerateFlags& flags, const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
    ChatRow row;
    row.id = "1";
    if (!flags.prompt.empty()) {
        row.prompt = flags.prompt;
    } else {
        // The turn to be written stands last and is left out.
        row.messages.push_back({.role = "user", .content = flags.chat, .reasoning = "", .tool_calls = ""});
        row.messages.push_back({.role = "assistant", .content = "", .reasoning = "", .tool_calls = ""});
    }
    return {row.id, render_prompt(row, chat_template, tokenizer)};
}

void stream_text(const GenerateFlags& flags, DecodingSetup& setup, const Tokenizer& tokenizer, const Prompt& prompt) {
    TextStream stream(tokenizer);
    const auto print = [](const std::string& text) {
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
    };
    const GenerateResult result =
        setup.generator().generate(setup.context(), prompt.ids, generate_settings(flags.decoding, setup.target(), 0),
                                   setup.draft() != nullptr, [&](std::span<const std::int32_t> tokens) {
                                       print(stream.push(tokens));
                                       return true;
                                   });
    print(stream.finish() + "\n");
    print_speed(result);
}

void write_texts(const GenerateFlags& flags, DecodingSetup& setup, const Tokenizer& tokenizer, const std::vector<Prompt>& prompts) {
    ProgressLine progress("generate", static_cast<std::int64_t>(prompts.size()), "prompts");
    std::int64_t done = 0;
    for (const Prompt& prompt : prompts) {
        const GenerateSettings settings = generate_settings(flags.decoding, setup.target(), static_cast<std::uint64_t>(done));
        const GenerateResult result = setup.generator().generate(setup.context(), prompt.ids, settings, setup.draft() != nullptr);
        const std::string text = output_text(tokenizer, result.output_ids);
        write_line(flags.json ? json_line(prompt, result, text) : fmt::format("== {}\n{}\n", prompt.id, text));
        progress.update(++done);
    }
}

int run_generate(const GenerateFlags& flags) {
    const int sources = (flags.prompts.empty() ? 0 : 1) + (flags.prompt.empty() ? 0 : 1) + (flags.chat.empty() ? 0 : 1);
    if (sources != 1) throw_bad_input("give one of --prompts FILE, --prompt TEXT and --chat TEXT");
    apply_decoding_flags(flags.decoding);
    const TargetConfig target = read_target_config(flags.decoding.target);
    const Tokenizer tokenizer = read_tokenizer(flags.decoding.target);
    const ChatTemplate chat_template = resolve_chat_template(flags.decoding);
    const std::vector<Prompt> prompts = flags.prompts.empty() ? std::vector<Prompt>{prompt_of_flags(flags, chat_template, tokenizer)}
                                                              : read_prompts(flags.prompts, flags.decoding.limit, chat_template, tokenizer);
    DecodingSetup setup(decoding_options(flags.decoding, generator_settings(prompts, flags.decoding.max_new_tokens, target)));
    if (flags.prompts.empty() && !flags.json) {
        stream_text(flags, setup, tokenizer, prompts.front());
    } else {
        write_texts(flags, setup, tokenizer, prompts);
    }
    return 0;
}

}  // namespace

void add_generate_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand("generate", "text from the target, alone or with a drafter");
    auto flags = std::make_shared<GenerateFlags>();
    add_decoding_flags(*command, flags->decoding, false);
    command->add_option("--prompts", flags->prompts, "JSONL of rows with messages, prompt (raw text) or prompt_ids");
    command->add_option("--prompt", flags->prompt, "raw text to continue, printed as it comes");
    command->add_option("--chat", flags->chat, "a user's message to answer, printed as it comes");
    command->add_flag("--json", flags->json, "a JSON object a line: id, prompt_ids, output_ids, text, verify_steps, acceptance_length");
    command->footer(
        "Examples:\n"
        "  dflash generate --target DIR --draft RUN/draft --chat \"Write a function that adds two numbers.\"\n"
        "  dflash generate --target DIR --draft RUN/draft --prompts chats.jsonl --max-new-tokens 96 --json");
    command->callback([&run, flags] { run = [flags] { return run_generate(*flags); }; });
}

}  // namespace dflash::cli
