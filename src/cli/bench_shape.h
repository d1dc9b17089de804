// SPDX-License-Identifier: MIT
// The value of --shape: a JSON file, or the name of a shape that came with the program (bench/shapes).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "train/step_bench.h"

namespace dflash::cli {

BenchShape read_bench_shape(const std::string& file_or_name);
std::vector<std::pair<std::string, BenchShape>> named_bench_shapes();

}  // namespace dflash::cli
