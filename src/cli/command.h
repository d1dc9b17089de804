// SPDX-License-Identifier: MIT
// One file a command: each adds a subcommand with its flags, and hands main() what to run once arguments are parsed.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace dflash::cli {

// Set by the chosen subcommand's callback; returns the process's exit code. May throw Error.
using Run = std::function<int()>;

void add_prepare_command(CLI::App& app, Run& run);
void add_tokenize_command(CLI::App& app, Run& run);
void add_features_command(CLI::App& app, Run& run);
void add_regenerate_command(CLI::App& app, Run& run);
void add_train_command(CLI::App& app, Run& run);
void add_eval_command(CLI::App& app, Run& run);
void add_generate_command(CLI::App& app, Run& run);
void add_plan_command(CLI::App& app, Run& run);
void add_bench_command(CLI::App& app, Run& run);
void add_inspect_command(CLI::App& app, Run& run);
void add_export_command(CLI::App& app, Run& run);
void add_tune_command(CLI::App& app, Run& run);
void add_doctor_command(CLI::App& app, Run& run);

}  // namespace dflash::cli
