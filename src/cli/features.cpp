// SPDX-License-Identifier: MIT
// `dflash features`: what the target computes, at any layers, to one safetensors file for looking at, or to a folder to train from.
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "base/log.h"
#include "cli/command.h"
#include "cli/progress_line.h"
#include "cli/words.h"
#include "data/chat_template.h"
#include "data/dataset.h"
#include "draft/draft_spec.h"
#include "io/atomic_file.h"
#include "target/features_folder.h"
#include "target/features_writer.h"
#include "tensor/device_choice.h"

namespace dflash::cli {
namespace {

namespace fs = std::filesystem;

struct FeaturesArguments {
    FeaturesOutput output;
    std::string data;
    std::string template_name = "auto";
    std::string thinking = "off";
    std::string system;
    std::string device = "auto", dtype = "f32";
    std::int64_t max_length = 0;
};

// A line on stderr that stays in place on a terminal, a line every few seconds elsewhere.
class TokenProgress {
public:
    explicit TokenProgress(const Dataset& data) : documents_(data.documents()), tokens_(data.tokens()) {}
    void update(std::int64_t documents, std::int64_t tokens) {
        const auto now = Clock::now();
        const bool last = documents == documents_;
        if (!last && now - printed_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(5000))) return;
        printed_ = now;
        const double seconds = std::max(1e-9, std::chrono::duration<double>(now - start_).count());
        const double rate = static_cast<double>(tokens) / seconds;
        const std::string text = fmt::format("[features] {}/{} rows, {}/{} tokens, {:.0f} tokens/s, {} left", documents, documents_, tokens,
                                             tokens_, rate, format_duration(static_cast<double>(tokens_ - tokens) / rate));
        if (terminal_) {
            fmt::print(stderr, "\r{}\033[K{}", text, last ? "\n" : "");
            std::fflush(stderr);
        } else {
            log_info("{}", text);
        }
    }

private:
    using Clock = std::chrono::steady_clock;
    std::int64_t documents_, tokens_;
    bool terminal_ = isatty(STDERR_FILENO) == 1;
    Clock::time_point start_ = Clock::now();
    Clock::time_point printed_ = start_;
};

FeaturesProgress start_progress(const Dataset& data) {
    auto progress = std::make_shared<TokenProgress>(data);
    return [progress](std::int64_t documents, std::int64_t tokens) { progress->update(documents, tokens); };
}

PrepareSettings prepare_settings(const FeaturesArguments& arguments) {
    PrepareSettings settings;
    settings.inputs = {arguments.data};
    settings.target = arguments.output.target;
    settings.max_length = arguments.max_length;
    // Without a tokenizer only rows with ready ids can be used, and those need no template.
    const bool needs_template = arguments.template_name != "auto" || fs::exists(settings.target + "/tokenizer.json");
    if (needs_template) settings.chat_template.kind = resolve_template(arguments.template_name, settings.target);
    settings.chat_template.thinking = arguments.thinking == "on";
    settings.chat_template.system = arguments.system;
    return settings;
}

void print_result(std::int64_t documents, std::int64_t tokens, const std::string& out) {
    fmt::print("rows    {:>12}\ntokens  {:>12}\nwritten to {}\n", documents, tokens, out);
}

int run_file(const FeaturesArguments& arguments) {
    const auto load = [&] {
        if (fs::is_directory(arguments.data)) return Dataset(arguments.data);
        PrepareSettings settings = prepare_settings(arguments);
        settings.strict = true;
        settings.keep_unsupervised = true;
        return Dataset::from_jsonl(settings);
    };
    const Dataset data = load();
    write_features_file(data, arguments.output, start_progress(data));
    print_result(data.documents(), data.tokens(), arguments.output.out);
    return 0;
}

// Only what this command made before is ever replaced.
void check_replaceable(const std::string& folder) {
    check_publishable(folder);
    if (!path_exists(folder)) return;
    if (fs::is_directory(folder) && (fs::is_empty(folder) || fs::exists(features_data_folder(folder)))) return;
    throw_bad_input("--out {} exists and is no folder of features: name another one", folder);
}

int run_folder(const FeaturesArguments& arguments) {
    const FeaturesOutput& output = arguments.output;
    if (output.request.want_logits) throw_bad_input("--logits goes into a file: --out FILE.safetensors");
    check_replaceable(output.out);
    const auto make_data = [&](const std::string& folder) {
        if (fs::is_directory(arguments.data)) {
            (void)Dataset(arguments.data);  // refuses what is no data set
            fs::copy(arguments.data, folder, fs::copy_options::recursive);
            return;
        }
        PrepareSettings settings = prepare_settings(arguments);
        settings.out = folder;
        const PrepareReport report = prepare_dataset(settings);
        log_info("[data] {} of {} rows used, {} truncated", report.rows_used, report.rows_in, report.rows_truncated);
    };
    std::int64_t documents = 0, tokens = 0;
    const std::int64_t shards = write_features_folder(make_data, output, [&](const Dataset& data) {
        documents = data.documents();
        tokens = data.tokens();
        return start_progress(data);
    });
    print_result(documents, tokens, fmt::format("{} ({} shards)", output.out, shards));
    return 0;
}

int run_features(FeaturesArguments arguments) {
    FeaturesOutput& output = arguments.output;
    FeatureRequest& request = output.request;
    output.device = choose_device(arguments.device);
    output.dtype = arguments.dtype == "bf16" ? DType::kBF16 : DType::kF32;
    const TargetConfig target = read_target_config(output.target);
    const bool is_file = output.out.ends_with(".safetensors");
    if (!is_file && request.layers.empty()) {
        request.layers = default_taps(target.layers, std::max<std::int64_t>(1, std::min<std::int64_t>(5, target.layers - 3)));
    }
    std::sort(request.layers.begin(), request.layers.end());
    request.layers.erase(std::unique(request.layers.begin(), request.layers.end()), request.layers.end());
    check_feature_request(request, target);
    return is_file ? run_file(arguments) : run_folder(arguments);
}

}  // namespace

void add_features_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand("features", "what the target computes, to a file for looking at or a folder to train from");
    auto arguments = std::make_shared<FeaturesArguments>();
    FeaturesOutput& output = arguments->output;
    command->add_option("--target", output.target, "folder of the target")->required()->check(CLI::ExistingDirectory);
    command->add_option("--data", arguments->data, "chat JSONL, or a folder made by `dflash prepare`")
        ->required()
        ->check(CLI::ExistingPath);
    command->add_option("--out", output.out, "FILE.safetensors, or a folder for `dflash train --features`")->required();
    command
        ->add_option("--layers", output.request.layers,
                     "layers n whose output (the raw residual, hidden.{n+1}) is written; -1 (as --layers=-1,...) is the embedding; a "
                     "folder's default: "
                     "the layers that a drafter taps by default")
        ->delimiter(',');
    command->add_flag("--final", output.request.want_final, "also the state after the last norm");
    command->add_flag("--logits", output.request.want_logits, "also log-sum-exp and argmax of the logits (files only)");
    command->add_option("--dtype", arguments->dtype, "of the states: f32 or bf16")
        ->check(CLI::IsMember({"f32", "bf16"}))
        ->capture_default_str();
    command->add_option("--template", arguments->template_name, "auto, chatml, qwen3, qwen3.5 or llama3")->capture_default_str();
    command->add_option("--thinking", arguments->thinking, "on or off: how the target is served")
        ->check(CLI::IsMember({"on", "off"}))
        ->capture_default_str();
    command->add_option("--system", arguments->system, "system text for rows that have none");
    command->add_option("--max-length", arguments->max_length, "tokens a row may have; longer ones are cut (0: no limit)")
        ->check(not_negative())
        ->capture_default_str();
    command->add_option("--device", arguments->device, "auto (a GPU where there is one: its states are bf16), cpu or cuda")
        ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
        ->capture_default_str();
    command->footer(
        "Example:\n  dflash features --target fixtures/tiny-qwen3.5 --data fixtures/data/chat_heldout.jsonl --layers 0,3,7 --final "
        "--logits "
        "--out out/features.safetensors");
    command->callback([&run, arguments] { run = [arguments] { return run_features(*arguments); }; });
}

}  // namespace dflash::cli
