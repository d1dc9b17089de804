// SPDX-License-Identifier: MIT
// The flags of `train`, from the settings table; `plan` takes the same ones.
#pragma once

#include <CLI/CLI.hpp>

#include "train/run_settings.h"

namespace dflash::cli {

// `settings` must live until the command has run.
void add_train_flags(CLI::App& command, RunSettings& settings);
// After parsing: notes which flags were written, in settings.given.
void note_given_flags(const CLI::App& command, RunSettings& settings);

}  // namespace dflash::cli
