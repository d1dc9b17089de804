// SPDX-License-Identifier: MIT
// `dflash prepare`: chat JSONL and a tokenizer to token shards with loss masks.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/words.h"
#include "data/chat_template.h"
#include "data/dataset.h"

namespace dflash::cli {
namespace {

struct PrepareArguments {
    PrepareSettings settings;
    std::string template_name = "auto";
    std::string thinking = "off";
};

void print_report(const PrepareReport& report, const std::string& out) {
    fmt::print("rows in            {:>12}\n", report.rows_in);
    fmt::print("rows used          {:>12}\n", report.rows_used);
    fmt::print("rows truncated     {:>12}\n", report.rows_truncated);
    std::int64_t refused = 0;
    for (const auto& [reason, rows] : report.refused) refused += rows;
    fmt::print("rows refused       {:>12}\n", refused);
    for (const auto& [reason, rows] : report.refused) fmt::print("  {:>10}  {}\n", rows, reason);
    fmt::print("tokens             {:>12}\n", report.tokens);
    fmt::print("supervised tokens  {:>12}\n", report.supervised_tokens);
    if (report.control_text_rows > 0) fmt::print("rows that spell control tokens, kept as plain text: {}\n", report.control_text_rows);
    fmt::print("written to {}\n", out);
}

int run_prepare(const PrepareArguments& arguments) {
    PrepareSettings settings = arguments.settings;
    // Without a tokenizer only rows with ready ids can be used, and those need no template.
    const bool needs_template = arguments.template_name != "auto" || std::filesystem::exists(settings.target + "/tokenizer.json");
    if (needs_template) settings.chat_template.kind = resolve_template(arguments.template_name, settings.target);
    settings.chat_template.thinking = arguments.thinking == "on";
    print_report(prepare_dataset(settings), settings.out);
    return 0;
}

}  // namespace

void add_prepare_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand("prepare", "chat JSONL and a tokenizer to token shards with loss masks");
    auto arguments = std::make_shared<PrepareArguments>();
    PrepareSettings& settings = arguments->settings;
    command->add_option("--target", settings.target, "folder of the target: tokenizer.json, tokenizer_config.json")
        ->required()
        ->check(CLI::ExistingDirectory);
    command->add_option("--data", settings.inputs, "JSONL files, one chat a line")->required();
    command->add_option("--out", settings.out, "folder to make; a data set prepared before is replaced")->required();
    command->add_option("--template", arguments->template_name, "auto, chatml, qwen3, qwen3.5 or llama3")->capture_default_str();
    command->add_option("--thinking", arguments->thinking, "on or off: how the target is served")
        ->check(CLI::IsMember({"on", "off"}))
        ->capture_default_str();
    command->add_option("--system", settings.chat_template.system, "system text for rows that have none");
    command->add_option("--max-length", settings.max_length, "tokens a row may have; longer ones are cut and counted (0: no limit)")
        ->check(not_negative())
        ->capture_default_str();
    command->add_flag("--strict", settings.strict, "any refused row is an error");
    command->footer(
        "Example:\n  dflash prepare --target fixtures/tiny-qwen3.5 --data fixtures/data/regen_train.jsonl --out out/data --max-length "
        "1024");
    command->callback([&run, arguments] { run = [arguments] { return run_prepare(*arguments); }; });
}

}  // namespace dflash::cli
