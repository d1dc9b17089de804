// SPDX-License-Identifier: MIT
#include "train/sources.h"

namespace dflash {
namespace {

// The target runs on this device, one micro-batch at a time, just before the drafter trains on it.
class LiveSource final : public FeatureSource {
public:
    LiveSource(const TargetModel& model, Loader& loader) : model_(model), loader_(loader) {}
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

std::unique_ptr<Loader> make_loader(const Dataset& data, const RunSettings& settings, const Communicator& communicator) {
    return std::make_unique<Loader>(data, LoaderSettings{.seed = static_cast<std::uint64_t>(settings.seed),
                                                         .token_budget = settings.token_budget,
                                                         .rank = communicator.rank(),
                                                         .ranks = communicator.ranks()});
}

}  // namespace

TrainingSources::TrainingSources(const RunInputs& inputs, const RunPlan& plan, const TargetWeights& weights, const Arena& arena,
                                 const Communicator& communicator) {
    model_ = std::make_unique<TargetModel>(inputs.target, weights, plan.target_forward, arena);
    training_loader_ = make_loader(*inputs.data, inputs.settings, communicator);
    training_ = std::make_unique<LiveSource>(*model_, *training_loader_);
    if (!inputs.validation) return;
    validation_loader_ = make_loader(*inputs.validation, inputs.settings, communicator);
    validation_ = std::make_unique<LiveSource>(*model_, *validation_loader_);
}

TrainingSources::~TrainingSources() = default;

}  // namespace dflash
