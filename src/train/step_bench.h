// SPDX-License-Identifier: MIT
// Times one optimizer step of a drafter of a given shape on random features, phase by phase, beside what the device's own matrix product
// reaches in the same run, and compares planned with measured memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "draft/draft_spec.h"
#include "tensor/device.h"
#include "train/ceiling.h"
#include "train/run_settings.h"
#include "train/step_flops.h"

namespace dflash {

struct BenchShape {
    std::int64_t hidden = 0, intermediate = 0, heads = 0, kv_heads = 0, head_dim = 0, layers = 0, taps = 5;
    std::int64_t vocabulary = 0, tokens = 0, anchors = 0, block_size = 0;
    std::int64_t window = 0;  // of all but the last layer; 0 = full attention throughout
};
// A JSON object with these keys (`taps` and `window` may be left out). Error(kBadInput) names what is missing.
BenchShape parse_bench_shape(const std::string& json_text, const std::string& where);
// The drafter of that shape.
DraftSpec draft_spec_of(const BenchShape& shape);

struct PhaseTimes {
    std::string name;
    std::vector<double> ms;  // one a repeat
};
struct StepBench {
    Device device;
    std::vector<PhaseTimes> phases;  // forward, loss, backward, optimizer
    std::vector<double> step_ms;
    std::vector<double> attention_ms;  // of a step: its attention kernels, forward and backward
    double first_step_ms = 0;          // with the weights there
    StepFlops flops;
    Ceiling ceiling;
    std::size_t planned_bytes = 0;  // the arena
    // On a GPU, measured: context and libraries before the arena is there; all that is taken at the end.
    std::size_t context_bytes = 0, total_bytes = 0;
    double median_step_ms() const;
    double share_of_ceiling() const;  // of the median step, sustained
};
// `settings`: --device resolved, --recompute and --grad-dtype; the shape says the rest.
StepBench run_step_bench(const BenchShape& shape, const RunSettings& settings, std::int64_t repeats);

double median(std::vector<double> values);

}  // namespace dflash
