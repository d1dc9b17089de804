// SPDX-License-Identifier: MIT
#include "train/step.h"

#include <cmath>

#include "base/error.h"

namespace dflash {

std::vector<double> slot_accuracy(const LossStatistics& statistics) {
    std::vector<double> accuracy(statistics.slot_count.size(), -1.0);
    for (std::size_t k = 0; k < accuracy.size(); ++k) {
        if (statistics.slot_count[k] > 0) accuracy[k] = statistics.slot_correct[k] / statistics.slot_count[k];
    }
    return accuracy;
}

StepRunner::StepRunner(const DraftModel& model, DraftStep& draft_step, Optimizer& optimizer, Communicator& communicator,
                       const AnchorSettings& anchors, const std::vector<std::int32_t>& end_tokens, const Tensor& target_head)
    : model_(model),
      draft_step_(draft_step),
      optimizer_(optimizer),
      communicator_(communicator),
      anchor_settings_(anchors),
      end_tokens_(end_tokens),
      target_head_(target_head) {}

void StepRunner::forward_micro_batch(const Context& context, const FeatureBatch& batch, bool want_gradient) {
    draw_anchors(*batch.batch, model_.spec, anchor_settings_, end_tokens_, anchors_);
    draft_step_.forward(context, model_, *batch.batch, batch.features, anchors_);
    draft_step_.loss(context, model_, batch.features, anchors_, target_head_, want_gradient);
}

// Everything a rank summed, over all ranks.
LossStatistics StepRunner::reduced_statistics(const Context& context) {
    LossStatistics s = draft_step_.statistics(context);
    if (communicator_.ranks() == 1) return s;
    reduced_ = {static_cast<double>(s.anchors), static_cast<double>(s.anchors_wanted), static_cast<double>(s.anchors_eligible)};
    communicator_.all_reduce_sum(reduced_);
    s.anchors = static_cast<std::int64_t>(reduced_[0]);
    s.anchors_wanted = static_cast<std::int64_t>(reduced_[1]);
    s.anchors_eligible = static_cast<std::int64_t>(reduced_[2]);
    return s;
}

StepMetrics StepRunner::run(const Context& context, FeatureSource& source, const StepPlan& plan) {
    StepMetrics metrics;
    draft_step_.clear_sums(context);
    for (std::int64_t i = 0; i < plan.micro_batches; ++i) {
        const FeatureBatch batch = source.next(context);
        forward_micro_batch(context, batch, /*want_gradient=*/true);
        if (i == 0) {
            metrics.epoch = batch.batch->epoch;
            metrics.first_micro_batch = batch.batch->index;
        }
        draft_step_.backward(context, model_, batch.features, anchors_, optimizer_.gradients(), {},
                             i == 0 ? Write::kOverwrite : Write::kAccumulate);
        source.release(context);
        metrics.tokens += batch.batch->tokens();
    }
    for (const NamedTensor& gradient : optimizer_.named_gradients()) communicator_.all_reduce_sum(gradient.tensor);
    communicator_.all_reduce_sum(draft_step_.sums());
    optimizer_.update(context, {.lr = plan.lr, .max_grad_norm = plan.max_grad_norm, .step = plan.step}, draft_step_.sums());
    metrics.step = plan.step;
    metrics.lr = plan.lr;
    if (plan.measure) read_metrics(context, metrics);
    return metrics;
}

void StepRunner::read_metrics(const Context& context, StepMetrics& metrics) {
    const LossStatistics total = reduced_statistics(context);
    metrics.gradient_norm = optimizer_.gradient_norm(context);
    if (!std::isfinite(total.loss_sum)) {
        throw_failed("step {}: the loss is {} in the micro-batches from {} of epoch {} on: lower --lr, or look at their data", metrics.step,
                     total.loss_sum, metrics.first_micro_batch, metrics.epoch);
    }
    if (!std::isfinite(metrics.gradient_norm)) {
        throw_failed("step {}: the gradient's norm is {}: lower --lr or --max-grad-norm", metrics.step, metrics.gradient_norm);
    }
    metrics.loss = total.weight_sum == 0 ? 0.0 : total.loss_sum / total.weight_sum;
    metrics.weight_sum = total.weight_sum;
    metrics.accuracy = slot_accuracy(total);
    metrics.estimated_acceptance_length = total.estimated_acceptance_length();
    metrics.anchors_wanted = total.anchors_wanted;
    metrics.anchors_eligible = total.anchors_eligible;
    metrics.anchors_used = total.anchors;
}

LossStatistics StepRunner::measure(const Context& context, FeatureSource& source, std::int64_t micro_batches) {
    draft_step_.clear_sums(context);
    for (std::int64_t i = 0; i < micro_batches; ++i) forward_micro_batch(context, source.next(context), /*want_gradient=*/false);
    communicator_.all_reduce_sum(draft_step_.sums());
    return reduced_statistics(context);
}

}  // namespace dflash
