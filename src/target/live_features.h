// SPDX-License-Identifier: MIT
// Features of the target on this device, one micro-batch at a time, just before the drafter trains on it.
#pragma once

#include "data/loader.h"
#include "target/features.h"
#include "target/target_model.h"

namespace dflash {

class LiveFeatures final : public FeatureSource {
public:
    // Both must outlive it.
    LiveFeatures(const TargetModel& model, Loader& loader) : model_(model), loader_(loader) {}
    std::int64_t batches_in_epoch(std::int64_t epoch) const override { return loader_.batches_in_epoch(epoch); }
    void seek(std::int64_t epoch, std::int64_t cursor) override { loader_.seek(epoch, cursor); }
    FeatureBatch next(const Context& context) override {
        const PackedBatch& batch = loader_.next();
        return {&batch, model_.forward(context, batch)};
    }

private:
    const TargetModel& model_;
    Loader& loader_;
};

}  // namespace dflash
