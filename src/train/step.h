// SPDX-License-Identifier: MIT
// One optimizer step: micro-batches -> features -> anchors -> forward, loss, backward -> sums over ranks -> AdamW.
// loss = sum(w l) / sum(w) over all micro-batches and ranks of the step; gradients collect un-normalised and are scaled once.
// The host launches and does not wait, but for metrics when they are wanted.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "draft/draft_model.h"
#include "target/features.h"
#include "train/metrics.h"
#include "train/optimizer.h"

namespace dflash {

struct StepPlan {
    std::int64_t step = 1;           // from 1
    std::int64_t micro_batches = 1;  // of this rank
    double lr = 0;
    double max_grad_norm = 0;
    bool measure = true;  // read loss, norm and counts, which waits for the device; else the metrics hold what the host knows
};

class StepRunner {
public:
    // All references must outlive the runner. `end_tokens` are the target's. Anchor vectors are filled to their final size here.
    StepRunner(const DraftModel& model, DraftStep& draft_step, Optimizer& optimizer, Communicator& communicator,
               const AnchorSettings& anchors, const std::vector<std::int32_t>& end_tokens, const Tensor& target_head);

    // Loss, norm, accuracies, counts; times are the caller's. Weights are left alone from the first step on whose loss or gradient norm is not
    // finite; the next measured step then throws Error(kFailed).
    StepMetrics run(const Context& context, FeatureSource& source, const StepPlan& plan);
    // Loss statistics of the next `micro_batches` of a source, without gradients (validation).
    LossStatistics measure(const Context& context, FeatureSource& source, std::int64_t micro_batches);

private:
    void forward_micro_batch(const Context& context, const FeatureBatch& batch, bool want_gradient);
    LossStatistics reduced_statistics(const Context& context);
    void read_metrics(const Context& context, StepMetrics& metrics);

    const DraftModel& model_;
    DraftStep& draft_step_;
    Optimizer& optimizer_;
    Communicator& communicator_;
    AnchorSettings anchor_settings_;
    std::vector<std::int32_t> end_tokens_;
    Tensor target_head_;
    AnchorSet anchors_;
    std::vector<double> reduced_;
};

// Share of correct slots, -1 where nothing was counted.
std::vector<double> slot_accuracy(const LossStatistics& statistics);

}  // namespace dflash
