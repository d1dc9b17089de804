// SPDX-License-Identifier: MIT
// Where a run's micro-batches and features come from: the target on this device over --data, or a folder of stored features.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "data/loader.h"
#include "target/feature_buffer.h"
#include "target/features.h"
#include "target/target_model.h"
#include "tensor/arena.h"
#include "train/run_inputs.h"
#include "train/run_plan.h"

namespace dflash {

class TrainingSources {
public:
    // `inputs` and `arena` must outlive it.
    TrainingSources(const RunInputs& inputs, const RunPlan& plan, const TargetWeights& weights, const Arena& arena,
                    const Communicator& communicator, const Context& context);
    ~TrainingSources();
    FeatureSource& training() { return *training_; }
    FeatureSource* validation() { return validation_.get(); }  // null without --val-data

private:
    std::unique_ptr<TargetModel> model_;
    std::unique_ptr<Loader> loader_;
    std::unique_ptr<FeatureBuffer> stored_;  // what stored features are read into
    std::unique_ptr<FeatureSource> training_, validation_;
};

}  // namespace dflash
