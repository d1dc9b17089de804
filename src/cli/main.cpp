// SPDX-License-Identifier: MIT
// Arguments in, exit code out: 0 done, 1 failed, 2 bad usage or bad input. The only place that catches.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>

#include "base/error.h"
#include "cli/command.h"
#include "cli/words.h"

namespace {

// CLI11 notices a missing command before it notices words that nobody takes: those words are what the user wants to hear of.
std::string failure_line(const CLI::App* app, const CLI::Error& error) {
    const auto unknown = app->remaining();
    const bool no_command = app->get_subcommands().empty() && !unknown.empty();
    const std::string reason = no_command ? "no such command or flag: " + unknown.front() : std::string(error.what());
    return "dflash: " + reason + " (see dflash --help)\n";
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): the commands' own declarations do not fail
int main(int argc, char** argv) {
    CLI::App app{"dflash trains, measures and runs DFlash drafters for speculative decoding."};
    app.name("dflash");
    app.set_version_flag("--version", "dflash " DFLASH_VERSION);
    app.require_subcommand(1);
    app.failure_message(failure_line);
    dflash::cli::Run run;
    for (auto* add : {
             // commands appear in --help in this order
             &dflash::cli::add_prepare_command,
             &dflash::cli::add_tokenize_command,
             &dflash::cli::add_features_command,
             &dflash::cli::add_inspect_command,
             &dflash::cli::add_regenerate_command,
             &dflash::cli::add_train_command,
             &dflash::cli::add_eval_command,
             &dflash::cli::add_generate_command,
             &dflash::cli::add_plan_command,
             &dflash::cli::add_bench_command,
             &dflash::cli::add_export_command,
             &dflash::cli::add_tune_command,
             &dflash::cli::add_doctor_command,
         }) {
        add(app, run);
    }
    try {
        dflash::cli::refuse_cut_flags(argc, argv);
        dflash::cli::check_words(app);
        app.parse(argc, argv);
        return run();
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;
    } catch (const dflash::Error& error) {
        std::fprintf(stderr, "dflash: %s\n", error.what());
        return error.kind() == dflash::ErrorKind::kBadInput ? 2 : 1;
    } catch (const std::filesystem::filesystem_error& error) {
        // exists() and its kin throw where a folder above may not be searched or a name is too long: the path given is at fault. A full or
        // failing disk is not the user's input.
        const bool disk = error.code() == std::errc::no_space_on_device || error.code() == std::errc::io_error;
        std::fprintf(stderr, "dflash: %s: %s; check %s\n", error.path1().c_str(), error.code().message().c_str(),
                     disk ? "the disk" : "the path and its permissions");
        return disk ? 1 : 2;
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "dflash: out of memory; `dflash plan` says what a run needs\n");
        return 1;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "dflash: %s\n", error.what());
        return 1;
    }
}
