// SPDX-License-Identifier: MIT
// `dflash bench loss`: the loss over a large vocabulary alone, as a share of what the device's own matrix product sustains.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/byte_size.h"
#include "base/error.h"
#include "cli/bench_report.h"
#include "tensor/device_choice.h"
#include "train/loss_bench.h"

namespace dflash::cli {
namespace {

struct LossFlags {
    LossBenchShape shape;
    std::string device = "auto";
    std::int64_t repeats = 9;
    bool json = false;
};

void print_json(const LossFlags& flags, const LossBench& bench) {
    const Json result = {{"device", device_type_name(bench.device)},
                         {"rows", flags.shape.rows},
                         {"hidden", flags.shape.hidden},
                         {"vocabulary", flags.shape.vocabulary},
                         {"loss_chunk", flags.shape.chunk},
                         {"loss_ms", to_json(range_of(bench.loss_ms))},
                         {"chunk_ms", {{"product", bench.product_ms}, {"row_kernel", bench.kernel_ms}, {"product_back", bench.back_ms}}},
                         {"gflop", bench.flops / 1e9},
                         {"product_gflop_per_s", bench.ceiling.sustained_flops / 1e9},
                         {"cold_product_gflop_per_s", bench.ceiling.cold_flops / 1e9},
                         {"share_of_product", bench.share_of_ceiling()},
                         {"planned_bytes", bench.planned_bytes},
                         {"measured_bytes", bench.measured_bytes}};
    fmt::print("{}\n", result.dump(2));
}

void print_table(const LossFlags& flags, const LossBench& bench) {
    const Range loss = range_of(bench.loss_ms);
    const LossBenchShape& shape = flags.shape;
    const double chunk_flop = bench.flops / 2 * static_cast<double>(std::min(shape.chunk, shape.rows)) / static_cast<double>(shape.rows);
    fmt::print("{} weighted rows, hidden {}, {} words, {} rows a chunk, on {}\n\n", shape.rows, shape.hidden, shape.vocabulary, shape.chunk,
               device_type_name(bench.device));
    fmt::print("loss, forward and gradient  {:.2f} ms (min {:.2f}, max {:.2f}), {:.1f} GFLOP/s\n", loss.median, loss.min, loss.max,
               bench.flops / loss.median / 1e6);
    fmt::print("of a chunk: product {:.3f} ms ({:.1f} GFLOP/s), row kernel {:.3f} ms, product back {:.3f} ms ({:.1f} GFLOP/s)\n",
               bench.product_ms, chunk_flop / bench.product_ms / 1e6, bench.kernel_ms, bench.back_ms, chunk_flop / bench.back_ms / 1e6);
    fmt::print("square product: cold {:.1f}, sustained {:.1f} GFLOP/s; the loss reaches {:.1f} % of the latter\n",
               bench.ceiling.cold_flops / 1e9, bench.ceiling.sustained_flops / 1e9, 100 * bench.share_of_ceiling());
    fmt::print("memory beyond inputs and outputs: {} planned", format_bytes(bench.planned_bytes));
    if (bench.measured_bytes > 0) fmt::print(", {} measured", format_bytes(bench.measured_bytes));
    fmt::print("\n");
}

int run_bench_loss(const LossFlags& flags) {
    const LossBench bench = run_loss_bench(flags.shape, choose_device(flags.device), flags.repeats);
    flags.json ? print_json(flags, bench) : print_table(flags, bench);
    return 0;
}

}  // namespace

void add_bench_loss_command(CLI::App& bench, Run& run) {
    CLI::App* command = bench.add_subcommand("loss", "the loss over a large vocabulary, forward and gradient, on random states");
    command->footer("Example:\n  dflash bench loss --vocabulary 248320 --hidden 5120 --rows 8192 --loss-chunk 1024");
    const auto flags = std::make_shared<LossFlags>();
    command->add_option("--device", flags->device, "auto, cpu or cuda")->capture_default_str();
    command->add_option("--rows", flags->shape.rows, "weighted rows")->check(between(1, kMostRows))->capture_default_str();
    command->add_option("--hidden", flags->shape.hidden, "width of the hidden states")->check(between(1, kMostRows))->capture_default_str();
    command->add_option("--vocabulary", flags->shape.vocabulary, "words of the head")->check(between(1, kMostRows))->capture_default_str();
    command->add_option("--loss-chunk", flags->shape.chunk, "rows of logits at a time")
        ->check(between(1, kMostRows))
        ->capture_default_str();
    command->add_option("--repeats", flags->repeats, "timed runs")->check(between(1, kMostRepeats))->capture_default_str();
    command->add_flag("--json", flags->json, "print one JSON object");
    command->callback([flags, &run] { run = [flags] { return run_bench_loss(*flags); }; });
}

}  // namespace dflash::cli
