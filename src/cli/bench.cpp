// SPDX-License-Identifier: MIT
// `dflash bench step`: one optimizer step of a drafter of a given shape, phase by phase, as a share of what the device's own matrix product
// reaches in the same run.
#include <fmt/core.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>

#include "base/byte_size.h"
#include "base/error.h"
#include "cli/bench_report.h"
#include "cli/bench_shape.h"
#include "tensor/cuda_runtime.h"
#include "tensor/device_choice.h"

namespace dflash::cli {
namespace {

struct StepFlags {
    std::string shape;
    RunSettings settings;                            // --device, --recompute, --grad-dtype
    std::int64_t token_budget = 0, max_anchors = 0;  // 0: as the shape says
    std::int64_t repeats = 10, threads = 0;
    bool json = false;
};

bool on_cuda(const StepBench& bench) { return bench.device.type == DeviceType::kCuda; }

void print_json(const StepFlags& flags, const StepBench& bench) {
    Json phases = Json::object();
    for (const PhaseTimes& phase : bench.phases) phases[phase.name] = to_json(range_of(phase.ms));
    Json result = {{"device", device_type_name(bench.device)},
                   {"shape", flags.shape},
                   {"repeats", flags.repeats},
                   {"step_ms", to_json(range_of(bench.step_ms))},
                   {"attention_ms", to_json(range_of(bench.attention_ms))},
                   {"first_step_ms", bench.first_step_ms},
                   {"phase_ms", phases},
                   {"flop", {{"forward", bench.flops.forward}, {"loss", bench.flops.loss}, {"backward", bench.flops.backward}}},
                   {"gflop_per_s", bench.flops.total() / bench.median_step_ms() / 1e6},
                   {"product_gflop_per_s", bench.ceiling.sustained_flops / 1e9},
                   {"share_of_product", bench.share_of_ceiling()},
                   {"planned_bytes", bench.planned_bytes}};
    if (on_cuda(bench)) {
        result["cold_product_gflop_per_s"] = bench.ceiling.cold_flops / 1e9;
        result["context_bytes"] = bench.context_bytes;
        result["measured_bytes"] = bench.total_bytes;
    } else {
        result["threads"] = omp_get_max_threads();
    }
    fmt::print("{}\n", result.dump(2));
}

void print_table(const StepFlags& flags, const StepBench& bench) {
    const std::string where =
        on_cuda(bench) ? cuda::device_properties(bench.device).name : fmt::format("{} threads", omp_get_max_threads());
    fmt::print("{} on {}, {} repeats, {} planned\n\n{:<10}{:>10}{:>10}{:>10}{:>12}{:>12}\n", flags.shape, where, flags.repeats,
               format_bytes(bench.planned_bytes), "ms", "min", "median", "max", "GFLOP", "GFLOP/s");
    const double flops[] = {bench.flops.forward, bench.flops.loss, bench.flops.backward, 0};
    const auto row = [](const std::string& name, const Range& ms, double flop) {
        fmt::print("{:<10}{:>10.2f}{:>10.2f}{:>10.2f}", name, ms.min, ms.median, ms.max);
        if (flop > 0) fmt::print("{:>12.2f}{:>12.1f}", flop / 1e9, flop / ms.median / 1e6);
        fmt::print("\n");
    };
    for (std::size_t i = 0; i < bench.phases.size(); ++i) row(bench.phases[i].name, range_of(bench.phases[i].ms), flops[i]);
    row("step", range_of(bench.step_ms), bench.flops.total());
    row("attention", range_of(bench.attention_ms), 0);
    fmt::print("first step {:.0f} ms\n", bench.first_step_ms);
    if (on_cuda(bench)) {
        fmt::print("\nbf16 matrix product of 8192 cubed: cold {:.1f}, sustained {:.1f} TFLOP/s; the step reaches {:.1f} % of the latter\n",
                   bench.ceiling.cold_flops / 1e12, bench.ceiling.sustained_flops / 1e12, 100 * bench.share_of_ceiling());
        fmt::print("memory: arena {} as planned; context and libraries {} measured at the start; in all {} measured at the end\n",
                   format_bytes(bench.planned_bytes), format_bytes(bench.context_bytes), format_bytes(bench.total_bytes));
    } else {
        fmt::print("\nfp32 matrix product of 2048 cubed: {:.1f} GFLOP/s; the step reaches {:.1f} % of it\n",
                   bench.ceiling.sustained_flops / 1e9, 100 * bench.share_of_ceiling());
    }
}

int run_bench_step(StepFlags flags) {
    if (flags.threads > 0) omp_set_num_threads(static_cast<int>(flags.threads));
    BenchShape shape = read_bench_shape(flags.shape);
    if (flags.token_budget > 0) shape.tokens = flags.token_budget;
    if (flags.max_anchors > 0) shape.anchors = flags.max_anchors;
    if (shape.tokens < 2)
        throw_bad_input("bench step: {} token has no room for an anchor and a word to guess; give 2 or more", shape.tokens);
    flags.settings.device = device_type_name(choose_device(flags.settings.device));
    check_settings(flags.settings);
    const StepBench bench = run_step_bench(shape, flags.settings, flags.repeats);
    flags.json ? print_json(flags, bench) : print_table(flags, bench);
    return 0;
}

}  // namespace

void add_bench_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand("bench", "measures time, memory and share of the machine's own ceiling");
    command->require_subcommand(1);
    command->footer("Example:\n  dflash bench step --device cpu --shape cpu-1024 --json");
    CLI::App* step = command->add_subcommand("step", "one optimizer step of a drafter on random features");
    step->footer(
        "Examples:\n  dflash bench step --device cpu --shape cpu-1024 --json\n  dflash bench step --shape qwen3.6-27b --max-anchors 256");
    const auto flags = std::make_shared<StepFlags>();
    step->add_option("--device", flags->settings.device, "auto, cpu or cuda")->capture_default_str();
    step->add_option("--shape", flags->shape, "a JSON file, or the name of one in bench/shapes")->required();
    step->add_option("--token-budget", flags->token_budget, "tokens of the micro-batch; 0: as the shape says")
        ->check(between(0, kMostRows))
        ->capture_default_str();
    step->add_option("--max-anchors", flags->max_anchors, "anchors of the micro-batch; 0: as the shape says")
        ->check(between(0, kMostRows))
        ->capture_default_str();
    step->add_option("--recompute", flags->settings.recompute, "none, attention or layer")->capture_default_str();
    step->add_option("--grad-dtype", flags->settings.grad_dtype, "auto, f32 or bf16")->capture_default_str();
    step->add_option("--repeats", flags->repeats, "timed steps")->check(between(1, kMostRepeats))->capture_default_str();
    step->add_option("--threads", flags->threads, "of the CPU; 0 = all")->check(between(0, kMaxThreads))->capture_default_str();
    step->add_flag("--json", flags->json, "print one JSON object");
    step->callback([flags, &run] { run = [flags] { return run_bench_step(*flags); }; });
    add_bench_loss_command(*command, run);
    add_bench_attention_command(*command, run);
}

}  // namespace dflash::cli
