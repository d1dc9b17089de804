// SPDX-License-Identifier: MIT
// Durations for people, and progress of training on stderr: a bar that stays in place on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <string>

#include "train/metrics.h"

namespace dflash::cli {

std::string duration_text(double seconds);  // "42 s", "3 min 5 s", "2 h 10 min"

class TrainProgress {
public:
    explicit TrainProgress(std::int64_t log_every);
    ~TrainProgress();
    void step(const StepMetrics& metrics);
    void evaluation(const EvalMetrics& metrics);

private:
    void end_bar();

    std::int64_t log_every_;
    bool terminal_;
    bool bar_open_ = false;
};

}  // namespace dflash::cli
