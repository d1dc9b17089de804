// SPDX-License-Identifier: MIT
// Progress of training on stderr: a bar that stays in place on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>

#include "train/metrics.h"

namespace dflash::cli {

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
