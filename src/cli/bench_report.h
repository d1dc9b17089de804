// SPDX-License-Identifier: MIT
// What the benches' reports share, and the subcommands of `dflash bench` that have a file of their own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cli/command.h"
#include "cli/words.h"
#include "io/json.h"
#include "train/step_bench.h"

namespace dflash::cli {

// Of times in milliseconds.
struct Range {
    double min = 0, median = 0, max = 0;
};
inline Range range_of(const std::vector<double>& ms) {
    const auto [low, high] = std::minmax_element(ms.begin(), ms.end());
    return {*low, median(ms), *high};
}
inline Json to_json(const Range& range) { return {{"min", range.min}, {"median", range.median}, {"max", range.max}}; }

constexpr std::int64_t kMostRows = std::int64_t{1} << 24, kMostRepeats = 1000000;

void add_bench_loss_command(CLI::App& bench, Run& run);
void add_bench_attention_command(CLI::App& bench, Run& run);

}  // namespace dflash::cli
