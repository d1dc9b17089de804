// SPDX-License-Identifier: MIT
// `dflash train`. Ctrl-C (or SIGTERM) finishes the step, saves and ends with exit code 1: the run is not complete, --resume continues it.
// A second Ctrl-C ends the process at once; the last checkpoint stays.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>

#include "base/byte_size.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "cli/train_flags.h"
#include "io/atomic_file.h"
#include "train/trainer.h"

namespace dflash::cli {
namespace {

// A signal handler can reach nothing else.
std::atomic<bool> stop_signalled{false};

void on_stop_signal(int signal) {
    stop_signalled = true;
    std::signal(signal, SIG_DFL);
}

// A run may be made in a folder that is there, but not among the files of something else.
void check_run_destination(const std::string& out) {
    check_publishable(std::filesystem::absolute(out).string());
    if (path_exists(out) && !std::filesystem::is_directory(out)) throw_bad_input("--out {} is a file: name a folder to make", out);
    for (const char* foreign : {"manifest.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json"}) {
        if (path_exists(out + "/" + foreign)) {
            throw_bad_input("--out {} holds a data set or a model ({}): name another folder for the run", out, foreign);
        }
    }
}

int run_train(const RunSettings& settings) {
    if (!settings.out.empty() && !settings.resume) check_run_destination(settings.out);
    std::signal(SIGINT, on_stop_signal);
    std::signal(SIGTERM, on_stop_signal);
    TrainProgress progress(settings.log_every);
    const TrainSummary summary = run_training(settings, {.on_step = [&](const StepMetrics& metrics) { progress.step(metrics); },
                                                         .on_eval = [&](const EvalMetrics& metrics) { progress.evaluation(metrics); },
                                                         .stop_requested = [] { return stop_signalled.load(); }});
    log_info("[train] planned {}, resident peak {}", format_bytes(summary.planned_bytes), format_bytes(summary.resident_peak_bytes));
    if (summary.stopped) {
        log_warning("[train] stopped at step {} of {}; saved. Continue with: dflash train --out {} --resume", summary.step,
                    summary.total_steps, settings.out);
        return 1;
    }
    fmt::print("drafter: {} (step {})\n", summary.draft_folder, summary.step);
    return 0;
}

}  // namespace

void add_train_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand("train", "trains a drafter for a frozen target");
    command->footer(
        "Ctrl-C finishes the step, saves and stops (exit code 1); a second one ends at once.\n"
        "Example:\n"
        "  dflash prepare --target Qwen3-8B --data chats.jsonl --out data\n"
        "  dflash train --target Qwen3-8B --data data --val-data held-out --out run --epochs 6\n"
        "  dflash train --out run --resume");
    const auto settings = std::make_shared<RunSettings>();
    add_train_flags(*command, *settings);
    command->set_config("--config", "", "read flags from this file (key = value lines)");
    command->callback([command, settings, &run] {
        note_given_flags(*command, *settings);
        run = [settings] { return run_train(*settings); };
    });
}

}  // namespace dflash::cli
