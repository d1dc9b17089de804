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
#include "cli/plan_picture.h"
#include "cli/train_flags.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "kernels/context.h"
#include "tensor/device_choice.h"
#include "tensor/host_reader.h"
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
bool on_gpu(const Planned& planned) { return planned.run.device.type == DeviceType::kCuda; }

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
    fmt::print("\narena: {} ({} bytes) on {}\n", format_bytes(plan.arena_bytes), plan.arena_bytes, on_gpu(planned) ? "one GPU" : "the CPU");
    if (on_gpu(planned)) {
        fmt::print("beside it: driver context and libraries, about {} (training measures them at its start); {} of pinned host memory\n",
                   format_bytes(reserved_bytes(planned.run.device)), format_bytes(planned.run.pinned_bytes));
    }
}

struct RecomputeFit {
    std::string recompute;
    std::size_t bytes = 0;
};
struct Fits {
    std::size_t memory = 0;  // as given
    std::size_t room = 0;    // of it for the arena
    std::int64_t max_anchors = 0, token_budget = 0;
    std::vector<RecomputeFit> recompute;
};
Fits find_fits(const RunSettings& settings, const Planned& planned) {
    Fits fits;
    fits.memory = parse_bytes(settings.memory, "--memory");
    fits.room = fits.memory - std::min(fits.memory, reserved_bytes(planned.run.device));
    fits.max_anchors = largest_max_anchors(planned.target, planned.draft, settings, fits.room);
    fits.token_budget = largest_token_budget(planned.target, planned.draft, settings, fits.room);
    for (const char* recompute : {"none", "attention", "layer"}) {
        RunSettings trial = settings;
        trial.recompute = recompute;
        fits.recompute.push_back({recompute, make_run_plan(planned.target, planned.draft, trial).plan.arena_bytes});
    }
    return fits;
}

void print_fits(const RunSettings& settings, const Planned& planned, const Fits& fits) {
    fmt::print("{} {}: {}\n", format_bytes(planned.run.plan.arena_bytes),
               planned.run.plan.arena_bytes <= fits.room ? "fits into" : "does not fit into", format_bytes(fits.memory));
    for (const RecomputeFit& fit : fits.recompute) {
        fmt::print("--recompute {:<10} {:>10}  {}\n", fit.recompute, format_bytes(fit.bytes), fit.bytes <= fits.room ? "fits" : "too much");
    }
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
                   {"device", device_type_name(planned.run.device)},
                   {"reserved_bytes", reserved_bytes(planned.run.device)},
                   {"pinned_bytes", planned.run.pinned_bytes},
                   {"peak", {{"phase", plan.phases[static_cast<std::size_t>(peak)]}, {"bytes", plan.phase_bytes(peak)}}},
                   {"phases", phases}};
    if (!settings.memory.empty()) {
        const Fits fits = find_fits(settings, planned);
        result["memory_bytes"] = fits.memory;
        result["fits"] = plan.arena_bytes <= fits.room;
        for (const RecomputeFit& fit : fits.recompute) result["arena_bytes_with_recompute"][fit.recompute] = fit.bytes;
        result["largest_max_anchors"] = fits.max_anchors;
        result["largest_token_budget"] = fits.token_budget;
    }
    fmt::print("{}\n", result.dump(2));
}

// With --memory one plans for a card, which need not be here; without it for what `train` would take on this machine.
std::string device_to_plan_for(const RunSettings& settings) {
    if (settings.device != "auto") return settings.device;
    return settings.memory.empty() ? device_type_name(choose_device("auto")) : "cuda";
}

struct PlanFlags {
    RunSettings settings;
    bool json = false;
    std::string svg;
};

int run_plan(const PlanFlags& flags) {
    RunSettings settings = flags.settings;
    settings.device = device_to_plan_for(settings);
    if (!flags.svg.empty() && !std::filesystem::is_directory(std::filesystem::absolute(flags.svg).parent_path())) {
        throw_bad_input("--svg {}: its folder does not exist", flags.svg);
    }
    const Planned planned = plan_run(settings);
    if (!flags.svg.empty()) {
        const std::string title = fmt::format("{}, {} tokens, {} anchors: {}", on_gpu(planned) ? "one GPU" : "CPU", settings.token_budget,
                                              settings.max_anchors, format_bytes(planned.run.plan.arena_bytes));
        write_file_atomically(flags.svg, plan_svg(planned.run.plan, title));
    }
    if (flags.json) {
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
        "Takes the flags of train; only --target is needed, and a config.json is enough. With --memory the plan is for a GPU of that "
        "size,\n"
        "which need not be here (--device cpu: for host memory); without it for what train would take on this machine.\n"
        "Example:\n"
        "  dflash plan --target Qwen3-8B/config.json --max-anchors 512 --memory 96GiB");
    const auto flags = std::make_shared<PlanFlags>();
    add_train_flags(*command, flags->settings);
    command->add_flag("--json", flags->json, "print one JSON object");
    command->add_option("--svg", flags->svg, "also draw the plan into this file: memory over the phases of a step, by category");
    command->callback([command, flags, &run] {
        note_given_flags(*command, flags->settings);
        run = [flags] { return run_plan(*flags); };
    });
}

}  // namespace dflash::cli
