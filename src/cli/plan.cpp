// SPDX-License-Identifier: MIT
// `dflash plan`: the memory that `train` with the same flags will take, by category and phase. Needs a config.json, no weights, no device.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/byte_size.h"
#include "base/error.h"
#include "cli/command.h"
#include "cli/train_flags.h"
#include "io/json.h"
#include "train/draft_choice.h"
#include "train/run_inputs.h"
#include "train/run_plan.h"
#include "train/run_record.h"

namespace dflash::cli {
namespace {

// Memory does not depend on which token masks, so without a tokenizer any token that may be one will do.
std::int32_t any_mask_token(const TargetConfig& target) {
    std::int32_t id = 0;
    while (id == target.pad_token || std::find(target.end_tokens.begin(), target.end_tokens.end(), id) != target.end_tokens.end()) ++id;
    return id;
}

struct Planned {
    TargetConfig target;
    DraftSpec draft;
    RunPlan run;
};
Planned plan_run(const RunSettings& settings) {
    check_settings(settings);
    if (settings.target.empty()) throw_bad_input("--target is missing: a target's folder or config.json");
    Planned planned;
    planned.target = read_target_config(settings.target);
    std::int32_t mask = std::filesystem::is_directory(settings.target) ? tokenizer_mask_token(settings.target) : -1;
    if (mask < 0) mask = any_mask_token(planned.target);
    planned.draft = choose_draft_spec(settings, planned.target, mask);
    planned.run = make_run_plan(planned.target, planned.draft, settings);
    return planned;
}

std::vector<Category> used_categories(const Plan& plan) {
    std::vector<Category> used;
    for (int c = 0; c < kNumCategories; ++c) {
        for (int phase = 0; phase < static_cast<int>(plan.phases.size()); ++phase) {
            if (plan.category_bytes(phase, static_cast<Category>(c)) == 0) continue;
            used.push_back(static_cast<Category>(c));
            break;
        }
    }
    return used;
}

void print_table(const Planned& planned) {
    const Plan& plan = planned.run.plan;
    const std::vector<Category> categories = used_categories(plan);
    fmt::print("drafter: {}\n\n{:<18}", describe_draft(planned.draft), "MB in phase");
    for (const Category category : categories) fmt::print("{:>13}", category_name(category));
    fmt::print("{:>13}\n", "sum");
    const auto megabytes = [](std::size_t bytes) { return static_cast<double>(bytes) / 1e6; };
    const int peak = peak_phase(plan);
    for (int phase = 0; phase < static_cast<int>(plan.phases.size()); ++phase) {
        fmt::print("{:<18}", plan.phases[static_cast<std::size_t>(phase)]);
        for (const Category category : categories) fmt::print("{:>13.1f}", megabytes(plan.category_bytes(phase, category)));
        fmt::print("{:>13.1f}{}\n", megabytes(plan.phase_bytes(phase)), phase == peak ? "  <- peak" : "");
    }
    fmt::print("\narena: {} ({} bytes) on the CPU\n", format_bytes(plan.arena_bytes), plan.arena_bytes);
}

struct Fits {
    std::size_t memory = 0;
    std::int64_t max_anchors = 0, token_budget = 0;
};
Fits find_fits(const RunSettings& settings, const Planned& planned) {
    Fits fits;
    fits.memory = parse_bytes(settings.memory, "--memory");
    fits.max_anchors = largest_max_anchors(planned.target, planned.draft, settings, fits.memory);
    fits.token_budget = largest_token_budget(planned.target, planned.draft, settings, fits.memory);
    return fits;
}

void print_fits(const RunSettings& settings, const Planned& planned, const Fits& fits) {
    fmt::print("{} {}: {}\n", format_bytes(planned.run.plan.arena_bytes),
               planned.run.plan.arena_bytes <= fits.memory ? "fits into" : "does not fit into", format_bytes(fits.memory));
    const auto line = [](std::int64_t value, const std::string& flag, const std::string& fixed) {
        if (value > 0) {
            fmt::print("largest {} with {}: {}\n", flag, fixed, value);
        } else {
            fmt::print("no {} fits with {}\n", flag, fixed);
        }
    };
    line(fits.max_anchors, "--max-anchors", fmt::format("--token-budget {}", settings.token_budget));
    line(fits.token_budget, "--token-budget", fmt::format("--max-anchors {}", settings.max_anchors));
}

void print_json(const RunSettings& settings, const Planned& planned) {
    const Plan& plan = planned.run.plan;
    Json phases = Json::array();
    for (int phase = 0; phase < static_cast<int>(plan.phases.size()); ++phase) {
        Json categories = Json::object();
        for (const Category category : used_categories(plan)) categories[category_name(category)] = plan.category_bytes(phase, category);
        phases.push_back(
            {{"name", plan.phases[static_cast<std::size_t>(phase)]}, {"bytes", plan.phase_bytes(phase)}, {"categories", categories}});
    }
    const int peak = peak_phase(plan);
    Json result = {{"arena_bytes", plan.arena_bytes},
                   {"device", "cpu"},
                   {"peak", {{"phase", plan.phases[static_cast<std::size_t>(peak)]}, {"bytes", plan.phase_bytes(peak)}}},
                   {"phases", phases}};
    if (!settings.memory.empty()) {
        const Fits fits = find_fits(settings, planned);
        result["memory_bytes"] = fits.memory;
        result["fits"] = plan.arena_bytes <= fits.memory;
        result["largest_max_anchors"] = fits.max_anchors;
        result["largest_token_budget"] = fits.token_budget;
    }
    fmt::print("{}\n", result.dump(2));
}

int run_plan(const RunSettings& settings, bool as_json) {
    const Planned planned = plan_run(settings);
    if (as_json) {
        print_json(settings, planned);
        return 0;
    }
    print_table(planned);
    if (!settings.memory.empty()) print_fits(settings, planned, find_fits(settings, planned));
    return 0;
}

}  // namespace

void add_plan_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand("plan", "the memory that train will take, and the largest settings that fit");
    command->footer(
        "Takes the flags of train; only --target is needed, and a config.json is enough.\n"
        "Example:\n"
        "  dflash plan --target Qwen3-8B/config.json --max-anchors 512 --memory 96GiB");
    const auto settings = std::make_shared<RunSettings>();
    const auto as_json = std::make_shared<bool>(false);
    add_train_flags(*command, *settings);
    command->add_flag("--json", *as_json, "print one JSON object");
    command->callback([command, settings, as_json, &run] {
        note_given_flags(*command, *settings);
        run = [settings, as_json] { return run_plan(*settings, *as_json); };
    });
}

}  // namespace dflash::cli
