// SPDX-License-Identifier: MIT
// `dflash bench step`: one optimizer step of a drafter of a given shape, phase by phase, as a share of what the machine's own fp32 matrix
// product reaches in the same run.
#include <fmt/core.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

#include "base/byte_size.h"
#include "base/error.h"
#include "cli/bench_shapes.h"
#include "cli/command.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "train/step_bench.h"

namespace dflash::cli {
namespace {

struct StepFlags {
    std::string device = "cpu", shape;
    std::int64_t repeats = 10, threads = 0;
    bool json = false;
};

// A file, or the name of a shape that came with the program.
BenchShape read_shape(const std::string& shape) {
    if (std::filesystem::is_regular_file(shape)) return parse_bench_shape(read_file(shape), shape);
    std::string names;
    for (const NamedShape& known : kBenchShapes) {
        if (shape == known.name) return parse_bench_shape(known.json, "shape " + shape);
        names += (names.empty() ? "" : ", ") + std::string(known.name);
    }
    throw_bad_input("--shape {}: no such file, and no shape of that name; there are: {}", shape, names);
}

struct Range {
    double min = 0, median = 0, max = 0;
};
Range range_of(const std::vector<double>& ms) {
    const auto [low, high] = std::minmax_element(ms.begin(), ms.end());
    return {*low, median(ms), *high};
}

Json to_json(const Range& range) { return {{"min", range.min}, {"median", range.median}, {"max", range.max}}; }

void print_json(const StepFlags& flags, const StepBench& bench) {
    Json phases = Json::object();
    for (const PhaseTimes& phase : bench.phases) phases[phase.name] = to_json(range_of(phase.ms));
    const Json result = {{"device", "cpu"},
                         {"shape", flags.shape},
                         {"threads", omp_get_max_threads()},
                         {"repeats", flags.repeats},
                         {"step_ms", to_json(range_of(bench.step_ms))},
                         {"phase_ms", phases},
                         {"flop", {{"forward", bench.flops.forward}, {"loss", bench.flops.loss}, {"backward", bench.flops.backward}}},
                         {"gflop_per_s", bench.flops.total() / bench.median_step_ms() / 1e6},
                         {"product_gflop_per_s", bench.ceiling_flops_per_second / 1e9},
                         {"share_of_product", bench.share_of_ceiling()},
                         {"planned_bytes", bench.planned_bytes}};
    fmt::print("{}\n", result.dump(2));
}

void print_table(const StepFlags& flags, const StepBench& bench) {
    fmt::print("{} on {} threads, {} repeats, {} planned\n\n{:<10}{:>10}{:>10}{:>10}{:>10}{:>12}\n", flags.shape, omp_get_max_threads(),
               flags.repeats, format_bytes(bench.planned_bytes), "ms", "min", "median", "max", "GFLOP", "GFLOP/s");
    const double flops[] = {bench.flops.forward, bench.flops.loss, bench.flops.backward, 0};
    const auto row = [](const std::string& name, const Range& ms, double flop) {
        fmt::print("{:<10}{:>10.2f}{:>10.2f}{:>10.2f}", name, ms.min, ms.median, ms.max);
        if (flop > 0) fmt::print("{:>10.2f}{:>12.1f}", flop / 1e9, flop / ms.median / 1e6);
        fmt::print("\n");
    };
    for (std::size_t i = 0; i < bench.phases.size(); ++i) row(bench.phases[i].name, range_of(bench.phases[i].ms), flops[i]);
    row("step", range_of(bench.step_ms), bench.flops.total());
    fmt::print("\nfp32 matrix product of 2048 cubed: {:.1f} GFLOP/s; the step reaches {:.1f} % of it\n",
               bench.ceiling_flops_per_second / 1e9, 100 * bench.share_of_ceiling());
}

int run_bench_step(const StepFlags& flags) {
    if (flags.device != "cpu") throw_bad_input("--device {}: this binary is built without CUDA; use cpu", flags.device);
    if (flags.repeats < 1) throw_bad_input("--repeats is {}; it must be at least 1", flags.repeats);
    if (flags.threads > 0) omp_set_num_threads(static_cast<int>(flags.threads));
    const StepBench bench = run_step_bench(read_shape(flags.shape), flags.repeats);
    flags.json ? print_json(flags, bench) : print_table(flags, bench);
    return 0;
}

}  // namespace

void add_bench_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand("bench", "measures time, memory and share of the machine's own ceiling");
    command->require_subcommand(1);
    command->footer("Example:\n  dflash bench step --device cpu --shape cpu-1024 --json");
    CLI::App* step = command->add_subcommand("step", "one optimizer step of a drafter on random features");
    step->footer("Example:\n  dflash bench step --device cpu --shape cpu-1024 --json");
    const auto flags = std::make_shared<StepFlags>();
    step->add_option("--device", flags->device, "cpu")->capture_default_str();
    step->add_option("--shape", flags->shape, "a JSON file, or the name of one in bench/shapes")->required();
    step->add_option("--repeats", flags->repeats, "timed steps")->capture_default_str();
    step->add_option("--threads", flags->threads, "of the CPU; 0 = all")->capture_default_str();
    step->add_flag("--json", flags->json, "print one JSON object");
    step->callback([flags, &run] { run = [flags] { return run_bench_step(*flags); }; });
}

}  // namespace dflash::cli
