// SPDX-License-Identifier: MIT
// `dflash tune`: measures the attention kernels that are compiled for this GPU at a drafter's shapes and remembers the fastest of each.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "cli/bench_report.h"
#include "cli/bench_shape.h"
#include "cli/command.h"
#include "cli/words.h"
#include "tensor/cuda_runtime.h"
#include "train/attention_tuning.h"

namespace dflash::cli {
namespace {

struct TuneFlags {
    std::string shape, draft;
    std::int64_t token_budget = 0, max_anchors = 0;  // 0: as the shape says
};

std::vector<cuda::AttentionKey> keys_of(const TuneFlags& flags) {
    if (flags.shape.empty() == flags.draft.empty()) throw_bad_input("give one of --shape and --draft: what to tune for");
    if (flags.token_budget == 1) throw_bad_input("--token-budget is 1: no room for an anchor and a word to guess; it must be 2 or more");
    BenchShape shape;
    shape.tokens = 8192;
    shape.anchors = 512;
    if (!flags.shape.empty()) shape = read_bench_shape(flags.shape);
    const DraftSpec spec = flags.draft.empty() ? draft_spec_of(shape) : read_draft_spec(flags.draft);
    return attention_keys(spec, flags.token_budget > 0 ? flags.token_budget : shape.tokens,
                          flags.max_anchors > 0 ? flags.max_anchors : shape.anchors);
}

// Two measurements of one kernel that lie far apart: someone else is using the device.
void check_idle(Context& context, const TuningDevice& device, const cuda::AttentionKey& key) {
    constexpr double kSteady = 1.1;
    const cuda::AttentionKernel kernel = cuda::attention_kernels(device.compute_capability, key.pass).front();
    const double first = measure_attention(context, key, kernel), second = measure_attention(context, key, kernel);
    if (std::max(first, second) > kSteady * std::min(first, second)) {
        log_warning("[tune] one kernel took {:.3f} and {:.3f} ms: the GPU seems to be in use; tune again when it is idle", first, second);
    }
}

int run_tune(const TuneFlags& flags) {
    const std::vector<cuda::AttentionKey> keys = keys_of(flags);
    if (cuda::device_count() == 0) {
        throw_bad_input("there is nothing to tune without a GPU{}: the CPU has one kernel an op",
                        cuda::is_built() ? "" : " (and this program was built without CUDA)");
    }
    const Device gpu{DeviceType::kCuda, 0};
    const TuningDevice device(gpu);
    Context context(gpu);
    TileCache cache(cache_folder());
    fmt::print("{}, compute capability {}.{}, build {}\n", device.name, device.compute_capability / 10, device.compute_capability % 10,
               device.build);
    check_idle(context, device, keys.front());
    bool stored = true;
    for (const cuda::AttentionKey& key : keys) {
        const TunedKernel tuned = tune_attention(cache, device, key, [&](const auto& of, const cuda::AttentionKernel& kernel) {
            return measure_attention(context, of, kernel);
        });
        fmt::print("{}\n", key.text());
        for (const auto& [kernel, ms] : tuned.ms) {
            fmt::print("    {:<16}{:>9.3f} ms  {}\n", kernel.id, ms, kernel == tuned.best ? "<- chosen" : "");
        }
        stored = stored && tuned.stored;
    }
    if (stored) {
        fmt::print("stored in {}; training and benches of this build on this device use it\n", cache.folder());
    } else {
        fmt::print("not stored: {} cannot be written ($DFLASH_CACHE_DIR names another folder)\n",
                   cache.folder().empty() ? "a cache folder" : cache.folder());
    }
    return 0;
}

}  // namespace

void add_tune_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand("tune", "measures the attention kernels of this GPU and remembers the fastest");
    command->footer(
        "On an idle GPU. Lengths count by powers of two; a choice holds for this build, device and shape.\n"
        "Examples:\n  dflash tune --shape qwen3.6-27b\n  dflash tune --draft runs/a/draft --token-budget 8192 --max-anchors 512");
    const auto flags = std::make_shared<TuneFlags>();
    command->add_option("--shape", flags->shape, "a JSON file, or the name of one in bench/shapes");
    command->add_option("--draft", flags->draft, "a drafter's folder or config.json");
    command->add_option("--token-budget", flags->token_budget, "tokens of a micro-batch; 0: as the shape says, 8192 with --draft")
        ->check(between(0, kMostRows))
        ->capture_default_str();
    command->add_option("--max-anchors", flags->max_anchors, "anchors of a micro-batch; 0: as the shape says, 512 with --draft")
        ->check(between(0, kMostRows))
        ->capture_default_str();
    command->callback([flags, &run] { run = [flags] { return run_tune(*flags); }; });
}

}  // namespace dflash::cli
