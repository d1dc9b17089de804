// SPDX-License-Identifier: MIT
#include "cli/bench_shape.h"

#include <filesystem>

#include "base/error.h"
#include "cli/bench_shapes.h"
#include "io/atomic_file.h"

namespace dflash::cli {

BenchShape read_bench_shape(const std::string& shape) {
    if (std::filesystem::is_regular_file(shape)) return parse_bench_shape(read_file(shape), shape);
    std::string names;
    for (const NamedShape& known : kBenchShapes) {
        if (shape == known.name) return parse_bench_shape(known.json, "shape " + shape);
        names += (names.empty() ? "" : ", ") + std::string(known.name);
    }
    throw_bad_input("--shape {}: no such file, and no shape of that name; there are: {}", shape, names);
}

std::vector<std::pair<std::string, BenchShape>> named_bench_shapes() {
    std::vector<std::pair<std::string, BenchShape>> shapes;
    for (const NamedShape& known : kBenchShapes) shapes.emplace_back(known.name, parse_bench_shape(known.json, known.name));
    return shapes;
}

}  // namespace dflash::cli
