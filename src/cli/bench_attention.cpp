// SPDX-License-Identifier: MIT
// `dflash bench attention`: the fused anchor attention alone, forward and backward, as a share of what the device's own matrix product
// reaches cold. TFLOP/s count unmasked pairs only.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/byte_size.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/bench_report.h"
#include "cli/bench_shape.h"
#include "cli/words.h"
#include "tensor/cuda_runtime.h"
#include "tensor/device_choice.h"
#include "tensor/device_memory.h"
#include "train/attention_tuning.h"
#include "train/attention_workload.h"
#include "train/unfused_attention.h"

namespace dflash::cli {
namespace {

struct AttentionFlags {
    std::string shape, device = "auto";
    bool table = false, every_kernel = false, unfused = false, json = false, anchors = false;
    std::int64_t repeats = 20;
};

// The attention of each kind of layer of a drafter.
std::vector<AttentionShape> shapes_of(const std::string& name, const BenchShape& shape) {
    std::vector<AttentionShape> shapes;
    for (const DraftLayerSpec& layer : layer_kinds(draft_spec_of(shape))) {
        shapes.push_back({.name = name + " " + describe_layer_kind(layer),
                          .context = shape.tokens,
                          .anchors = shape.anchors,
                          .window = layer.window,
                          .causal_block = layer.causal_block,
                          .seed = 1,
                          .heads = shape.heads,
                          .kv_heads = shape.kv_heads,
                          .head_dim = shape.head_dim,
                          .block_size = shape.block_size});
    }
    return shapes;
}

// The kernels of one row of the report: forward and backward.
struct KernelPair {
    std::string name, back_end;
    cuda::AttentionChoices choices;
};

cuda::AttentionKey key_of(const AttentionShape& s, cuda::AttentionPass pass) {
    return {pass,
            s.heads,
            s.kv_heads,
            s.head_dim,
            s.block_size,
            s.window,
            s.causal_block,
            cuda::length_bucket(s.context),
            cuda::length_bucket(s.anchors)};
}

const char* back_end_name(const cuda::AttentionKernel& kernel) {
    return kernel.backend == cuda::AttentionBackend::kHopper ? "hopper" : "portable";
}

// What training would run, or every compiled kernel; the CPU has one.
std::vector<KernelPair> kernels_of(const AttentionShape& shape, Device device, bool every_kernel) {
    if (device.type == DeviceType::kCpu) return {{"cpu", "cpu", {}}};
    const cuda::AttentionKey forward_key = key_of(shape, cuda::AttentionPass::kForward);
    const cuda::AttentionKey backward_key = key_of(shape, cuda::AttentionPass::kBackward);
    const int capability = TuningDevice(device).compute_capability;
    const auto forward = cuda::attention_kernels(capability, cuda::AttentionPass::kForward);
    const auto backward = cuda::attention_kernels(capability, cuda::AttentionPass::kBackward);
    const auto pair = [&](const cuda::AttentionKernel& first, const cuda::AttentionKernel& second) {
        const std::string ids = std::string(first.id) == second.id ? first.id : fmt::format("{} / {}", first.id, second.id);
        KernelPair kernels{ids, back_end_name(first), {}};
        kernels.choices.set(forward_key, first);
        kernels.choices.set(backward_key, second);
        return kernels;
    };
    if (!every_kernel) {
        const cuda::AttentionChoices chosen = choices_for_run(device, {forward_key, backward_key}, nullptr);
        const auto chosen_or = [&](const cuda::AttentionKey& key, const cuda::AttentionKernel& otherwise) {
            const cuda::AttentionKernel* kernel = chosen.find(key);
            return kernel != nullptr ? *kernel : otherwise;
        };
        return {pair(chosen_or(forward_key, forward.front()), chosen_or(backward_key, backward.front()))};
    }
    std::vector<KernelPair> pairs;
    for (std::size_t i = 0; i < std::min(forward.size(), backward.size()); ++i) pairs.push_back(pair(forward[i], backward[i]));
    return pairs;
}

struct Measured {
    double mask_ms = 0, forward_ms = 0, backward_ms = 0, forward_flops = 0, backward_flops = 0;  // the latter two a second
    std::size_t extra_bytes = 0;
};

// Both passes of one implementation.
template <typename Attention>
Measured measure(const Context& context, const AttentionWorkload& workload, const Attention& attention, std::size_t extra_bytes, int runs) {
    Measured m;
    m.mask_ms = median_ms_of(
        context, [&] { workload.prepare_mask(); }, runs);
    m.forward_ms = median_ms_of(
        context, [&] { attention.forward(); }, runs);
    m.backward_ms = median_ms_of(
        context, [&] { attention.backward(); }, runs);
    m.forward_flops = workload.forward_flop() / m.forward_ms * 1e3;
    m.backward_flops = workload.backward_flop() / m.backward_ms * 1e3;
    m.extra_bytes = extra_bytes;
    return m;
}

void print_json(const AttentionFlags& flags, const AttentionShape& shape, const AttentionWorkload& workload, const KernelPair& kernels,
                const Measured& m, const Ceiling& ceiling) {
    Json line = {{"case", shape.name},
                 {"back_end", kernels.back_end},
                 {"kernel", kernels.name},
                 {"context", shape.context},
                 {"documents", shape.documents},
                 {"window", shape.window},
                 {"heads", shape.heads},
                 {"kv_heads", shape.kv_heads},
                 {"head_dim", shape.head_dim},
                 {"block_size", shape.block_size},
                 {"pairs", workload.anchors().pairs},
                 {"mask_ms", m.mask_ms},
                 {"forward_ms", m.forward_ms},
                 {"backward_ms", m.backward_ms},
                 {"forward_tflops", m.forward_flops / 1e12},
                 {"backward_tflops", m.backward_flops / 1e12},
                 {"ceiling_tflops", ceiling.cold_flops / 1e12},
                 {"extra_gb", static_cast<double>(m.extra_bytes) / 1e9}};
    if (flags.anchors) {
        line["begin"] = workload.anchors().begin;
        line["anchor"] = workload.anchors().anchor;
    }
    fmt::print("{}\n", line.dump());
}

void print_row(const AttentionShape& shape, const AttentionWorkload& workload, const KernelPair& kernels, const Measured& m,
               const Ceiling& ceiling) {
    const auto pass = [&](double ms, double flops) {
        return fmt::format("{:>10.3f} ms {:>7.2f} TFLOP/s {:>4.0f} %", ms, flops / 1e12, 100 * flops / ceiling.cold_flops);
    };
    fmt::print("{:<40} {:<32}{:>9.2f} M{:>8.1f} us{}{}  {}\n", shape.name, kernels.name, workload.anchors().pairs / 1e6, 1e3 * m.mask_ms,
               pass(m.forward_ms, m.forward_flops), pass(m.backward_ms, m.backward_flops), format_bytes(m.extra_bytes));
}

// Attention whose scores are in memory, where they fit: a few runs, since it takes long and says enough.
template <typename Report>
void measure_unfused(const Context& context, const AttentionWorkload& workload, const Report& report) {
    constexpr int kRuns = 3;
    const std::size_t bytes = UnfusedAttention::extra_bytes(workload.tensors());
    if (bytes > available_memory_bytes(context.device())) {
        log_warning("[bench] the unfused attention needs {}, which is not there: left out", format_bytes(bytes));
        return;
    }
    const UnfusedAttention unfused(context, workload.tensors());
    report({"unfused: scores in memory", "unfused", {}}, measure(context, workload, unfused, bytes, kRuns));
}

int run_bench_attention(const AttentionFlags& flags) {
    if (flags.table != flags.shape.empty()) throw_bad_input("give one of --table and --shape: what to measure");
    if (flags.anchors && !flags.json) throw_bad_input("--anchors goes with --json");
    const Device device = choose_device(flags.device);
    const auto shapes = flags.table ? attention_table() : shapes_of(flags.shape, read_bench_shape(flags.shape));
    const Ceiling ceiling = measure_ceiling(device);
    Context context(device);
    if (!flags.json) {
        const std::string where = device.type == DeviceType::kCuda ? cuda::device_properties(device).name : "the CPU";
        fmt::print("{}; its own matrix product, cold: {:.2f} TFLOP/s\n", where, ceiling.cold_flops / 1e12);
        fmt::print("{:<40} {:<32}{:>11}{:>11}{:>33}{:>33}  {}\n", "case", "kernel", "pairs/head", "mask", "forward, share of the product",
                   "backward", "memory beyond inputs and outputs");
    }
    const auto runs = static_cast<int>(flags.repeats);
    for (const AttentionShape& shape : shapes) {
        const AttentionWorkload workload(context, shape);
        const auto report = [&](const KernelPair& kernels, const Measured& m) {
            flags.json ? print_json(flags, shape, workload, kernels, m, ceiling) : print_row(shape, workload, kernels, m, ceiling);
            std::fflush(stdout);
        };
        for (const KernelPair& kernels : kernels_of(shape, device, flags.every_kernel)) {
            context.bind_attention(&kernels.choices);
            report(kernels, measure(context, workload, workload, workload.extra_bytes(), runs));
            context.bind_attention(nullptr);
        }
        if (flags.unfused) measure_unfused(context, workload, report);
    }
    return 0;
}

}  // namespace

void add_bench_attention_command(CLI::App& bench, Run& run) {
    CLI::App* command = bench.add_subcommand("attention", "the fused anchor attention alone, forward and backward, on random values");
    command->footer(
        "Each kernel is timed cold: a GPU rests before it.\n"
        "Examples:\n  dflash bench attention --table --every-kernel --unfused\n  dflash bench attention --device cpu --shape demo --json");
    const auto flags = std::make_shared<AttentionFlags>();
    command->add_option("--device", flags->device, "auto, cpu or cuda")->capture_default_str();
    command->add_option("--shape", flags->shape, "each kind of layer of a drafter: a JSON file, or the name of one in bench/shapes");
    command->add_flag("--table", flags->table, "the six cases that the kernels are judged by: 32/8 heads of 128, blocks of 16");
    command->add_flag("--every-kernel", flags->every_kernel, "every kernel compiled for the device, not only the one that training runs");
    command->add_flag("--unfused", flags->unfused, "also attention from matrix products and a softmax over scores in memory");
    command->add_option("--repeats", flags->repeats, "timed runs; the median counts")
        ->check(between(1, kMostRepeats))
        ->capture_default_str();
    command->add_flag("--json", flags->json, "print one JSON object a line");
    command->add_flag("--anchors", flags->anchors, "with --json: each case's anchors, for a comparison on the same mask");
    command->callback([flags, &run] { run = [flags] { return run_bench_attention(*flags); }; });
}

}  // namespace dflash::cli
