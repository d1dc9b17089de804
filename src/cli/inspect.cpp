// SPDX-License-Identifier: MIT
// `dflash inspect`: what a checkpoint, a safetensors file, a drafter, a data set or a run holds.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/inspect_report.h"

namespace dflash::cli {

namespace {

struct InspectArguments {
    std::string path;
    bool json = false;
};

int run_inspect(const InspectArguments& arguments) {
    const Report report = inspect_path(arguments.path);
    fmt::print("{}", arguments.json ? report.dump(2, ' ', false, Report::error_handler_t::replace) + "\n" : report_text(report));
    return 0;
}

}  // namespace

void add_inspect_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand("inspect", "what a checkpoint, safetensors file, drafter, data set or run holds");
    auto arguments = std::make_shared<InspectArguments>();
    command->add_option("path", arguments->path, "a folder, a *.safetensors file or a config.json")->required();
    command->add_flag("--json", arguments->json, "one JSON object instead of text");
    command->footer("Example:\n  dflash inspect fixtures/tiny-qwen3.5\n  dflash inspect fixtures/golden/tiny-qwen3.safetensors --json");
    command->callback([&run, arguments] { run = [arguments] { return run_inspect(*arguments); }; });
}

}  // namespace dflash::cli
