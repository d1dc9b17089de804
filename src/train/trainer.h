// SPDX-License-Identifier: MIT
// A whole training run: inputs -> plan -> arena -> loop of steps, evaluations and checkpoints -> the last save. After its first step the
// loop maps no memory and takes no heap block of 64 KiB or more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "train/metrics.h"
#include "train/run_settings.h"

namespace dflash {

struct TrainHooks {
    std::function<void(const StepMetrics&)> on_step;
    std::function<void(const EvalMetrics&)> on_eval;
    // Asked after each step: true = save and stop.
    std::function<bool()> stop_requested;
};

struct TrainSummary {
    std::int64_t step = 0, total_steps = 0;
    bool stopped = false;  // by stop_requested, before total_steps
    std::size_t planned_bytes = 0, resident_peak_bytes = 0;
    std::string draft_folder;
};

// Error(kBadInput) for anything wrong with flags, files or memory, before the run folder is made; Error(kFailed) when a loss or gradient is
// not finite or the disk is full. One checkpoint more is written when the loop ends or is stopped.
TrainSummary run_training(const RunSettings& settings, const TrainHooks& hooks);

}  // namespace dflash
