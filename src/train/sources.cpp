// SPDX-License-Identifier: MIT
#include "train/sources.h"

#include "target/live_features.h"
#include "target/stored_features.h"

namespace dflash {
namespace {

// Held-out micro-batches in one fixed order, filled when asked for: evaluations are few, and then no thread has to be kept for them.
class HeldOutSource final : public FeatureSource {
public:
    HeldOutSource(const TargetModel& model, const Dataset& data, std::uint64_t seed, std::int64_t token_budget)
        : model_(model), data_(data), token_budget_(token_budget), order_(pack_epoch(data, seed, 0, token_budget)) {
        for (const std::vector<std::int64_t>& documents : order_) fill_batch(data_, documents, token_budget_, batch_);  // to its final size
    }
    std::int64_t batches_in_epoch(std::int64_t) const override { return static_cast<std::int64_t>(order_.size()); }
    void seek(std::int64_t, std::int64_t cursor) override { cursor_ = cursor; }
    FeatureBatch next(const Context& context) override {
        fill_batch(data_, order_[static_cast<std::size_t>(cursor_) % order_.size()], token_budget_, batch_);
        batch_.epoch = 0;
        batch_.index = cursor_++;
        return {&batch_, model_.forward(context, batch_)};
    }

private:
    const TargetModel& model_;
    const Dataset& data_;
    std::int64_t token_budget_;
    std::vector<std::vector<std::int64_t>> order_;
    PackedBatch batch_;
    std::int64_t cursor_ = 0;
};

}  // namespace

TrainingSources::TrainingSources(const RunInputs& inputs, const RunPlan& plan, const TargetWeights& weights, const Arena& arena,
                                 const Communicator& communicator, const Context& context) {
    const auto seed = static_cast<std::uint64_t>(inputs.settings.seed);
    const std::int64_t token_budget = inputs.settings.token_budget;
    const LoaderSettings order{.seed = seed, .token_budget = token_budget, .rank = communicator.rank(), .ranks = communicator.ranks()};
    if (!inputs.settings.features.empty()) {
        TargetFeatures memory{arena.tensor("target.features.taps"), {}};
        if (plan.target_forward.want_final) memory.final_state = arena.tensor("target.features.final_state");
        stored_ = std::make_unique<FeatureBuffer>(memory);
        const StoredFeatureSettings stored{.taps = plan.target_forward.taps, .target_fingerprint = inputs.target_fingerprint};
        training_ = std::make_unique<StoredFeatures>(inputs.settings.features, *inputs.data, order, stored, *stored_);
        if (!inputs.validation) return;
        validation_ = std::make_unique<StoredFeatures>(inputs.settings.val_data, *inputs.validation, order, stored, *stored_);
        validation_->next(context);  // its thread's memory is there before the first step
        return;
    }
    model_ = std::make_unique<TargetModel>(inputs.target, weights, plan.target_forward, arena);
    loader_ = std::make_unique<Loader>(*inputs.data, order);
    training_ = std::make_unique<LiveFeatures>(*model_, *loader_);
    if (inputs.validation) validation_ = std::make_unique<HeldOutSource>(*model_, *inputs.validation, seed, token_budget);
}

TrainingSources::~TrainingSources() = default;

}  // namespace dflash
