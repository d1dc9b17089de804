// SPDX-License-Identifier: MIT
// `dflash eval`: what a drafter gains on prompts, next to the target alone: acceptance length, acceptance by position, speed, and whether
// greedy output stayed the target's own.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/command.h"
#include "cli/decoding_flags.h"
#include "cli/progress_line.h"
#include "draft/provenance.h"
#include "generate/acceptance.h"
#include "io/json.h"

namespace dflash::cli {
namespace {

struct EvalFlags {
    DecodingFlags decoding;
    std::string prompts;
    bool untrained = false;
    bool json = false;
};

// The seed that the drafter's training started from; 0 where its folder does not say.
std::uint64_t training_seed(const std::string& draft_folder) {
    const Json training = read_draft_provenance(draft_folder).training;
    const Json settings = training.value("settings", Json::object());
    return static_cast<std::uint64_t>(json_get_or<std::int64_t>(settings, "seed", 0, draft_folder + "/training.json"));
}

AcceptanceReport measure(const EvalFlags& flags, DecodingSetup& setup, const std::vector<Prompt>& prompts) {
    AcceptanceReport report;
    ProgressLine progress("eval", static_cast<std::int64_t>(prompts.size()), "prompts");
    for (const Prompt& prompt : prompts) {
        const GenerateSettings settings = generate_settings(flags.decoding, setup.target(), static_cast<std::uint64_t>(report.prompts));
        const GenerateResult drafted = setup.generator().generate(setup.context(), prompt.ids, settings, true);
        const GenerateResult plain = setup.generator().generate(setup.context(), prompt.ids, settings, false);
        report.add(drafted);
        report.compare(drafted, plain);
        progress.update(report.prompts, fmt::format("acceptance length {:.2f}", report.acceptance_length()));
    }
    return report;
}

// Share of the offered drafts of each slot that were accepted, from the first slot that is offered at all.
std::vector<double> acceptance_by_position(const AcceptanceReport& report) {
    std::vector<double> shares;
    for (std::size_t k = 0; k < report.proposed_by_slot.size(); ++k) {
        const std::int64_t offered = report.proposed_by_slot[k];
        if (offered == 0 && shares.empty()) continue;
        shares.push_back(offered > 0 ? static_cast<double>(report.accepted_by_slot[k]) / static_cast<double>(offered) : 0);
    }
    return shares;
}

void print_json(const EvalFlags& flags, const AcceptanceReport& report) {
    nlohmann::ordered_json row;
    row["prompts"] = report.prompts;
    row["new_tokens"] = report.new_tokens;
    row["verify_steps"] = report.verify_steps;
    row["acceptance_length"] = report.acceptance_length();
    row["acceptance_length_prompt_mean"] = report.prompt_mean();
    row["acceptance_by_position"] = acceptance_by_position(report);
    row["tokens_per_second"] = report.tokens_per_second();
    row["plain_tokens_per_second"] = report.plain_tokens_per_second();
    row["speed_up"] = report.speed_up();
    const bool greedy = flags.decoding.sampling.greedy();
    row["identical_to_plain_greedy"] = greedy ? nlohmann::ordered_json(report.differing_tokens == 0) : nullptr;
    row["differing_tokens"] = greedy ? nlohmann::ordered_json(report.differing_tokens) : nullptr;
    row["untrained"] = flags.untrained;
    fmt::print("{}\n", row.dump());
}

void print_table(const EvalFlags& flags, const AcceptanceReport& report) {
    fmt::print("drafter              {}{}\n", flags.decoding.draft, flags.untrained ? " (untrained: its config with random weights)" : "");
    fmt::print("prompts              {}, {} new tokens\n", report.prompts, report.new_tokens);
    fmt::print("acceptance length    {:.3f} tokens a verify step ({} steps), mean of the prompts {:.3f}\n", report.acceptance_length(),
               report.verify_steps, report.prompt_mean());
    fmt::print("drafts accepted      ");
    std::size_t position = 1;
    for (const double share : acceptance_by_position(report)) fmt::print("{}: {:.1f} %  ", position++, 100 * share);
    fmt::print("\nspeed                {:.1f} tokens/s drafted, {:.1f} tokens/s plain: {:.2f} times as fast\n", report.tokens_per_second(),
               report.plain_tokens_per_second(), report.speed_up());
    if (flags.decoding.sampling.greedy()) {
        fmt::print("identical to plain greedy: {} ({} tokens differ)\n", report.differing_tokens == 0 ? "yes" : "no",
                   report.differing_tokens);
    } else {
        fmt::print("identical to plain greedy: not compared (sampled)\n");
    }
}

int run_eval(const EvalFlags& flags) {
    apply_decoding_flags(flags.decoding);
    // The first token comes from the prompt's own pass: one alone has no verify step to measure.
    if (flags.decoding.max_new_tokens < 2)
        throw_bad_input("--max-new-tokens is {}: measuring needs at least 2", flags.decoding.max_new_tokens);
    const TargetConfig target = read_target_config(flags.decoding.target);
    const Tokenizer tokenizer = read_tokenizer(flags.decoding.target);
    const std::vector<Prompt> prompts = read_prompts(flags.prompts, flags.decoding.limit, resolve_chat_template(flags.decoding), tokenizer);
    DecodingOptions options = decoding_options(flags.decoding, generator_settings(prompts, flags.decoding.max_new_tokens, target));
    if (flags.untrained) options.untrained_seed = training_seed(flags.decoding.draft);
    DecodingSetup setup(options);
    const AcceptanceReport report = measure(flags, setup, prompts);
    flags.json ? print_json(flags, report) : print_table(flags, report);
    return 0;
}

}  // namespace

void add_eval_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand("eval", "acceptance length of a drafter on prompts, next to plain decoding");
    auto flags = std::make_shared<EvalFlags>();
    flags->decoding.limit = 48;
    flags->decoding.max_new_tokens = 96;
    add_decoding_flags(*command, flags->decoding, true);
    command->add_option("--prompts", flags->prompts, "JSONL of rows with messages, prompt (raw text) or prompt_ids")->required();
    command->add_flag("--untrained", flags->untrained, "measure the drafter's config with fresh random weights, for comparison");
    command->add_flag("--json", flags->json, "one JSON object instead of the table");
    command->footer("Example:\n  dflash eval --target DIR --draft RUN/draft --prompts chat_heldout.jsonl");
    command->callback([&run, flags] { run = [flags] { return run_eval(*flags); }; });
}

}  // namespace dflash::cli
