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

LossStatistics StepRunner::forward_micro_batch(const Context& context, const FeatureBatch& batch, bool want_gradient) {
    draw_anchors(*batch.batch, model_.spec, anchor_settings_, end_tokens_, anchors_);
    draft_step_.forward(context, model_, *batch.batch, batch.features, anchors_);
    return draft_step_.loss(context, model_, batch.features, anchors_, target_head_, want_gradient);
}

// Everything a rank counted, as one list of numbers in a fixed order.
void StepRunner::reduce(LossStatistics& s) {
    if (communicator_.ranks() == 1) return;
    reduced_ = {s.loss_sum,
                s.weight_sum,
                s.accepted_sum,
                static_cast<double>(s.anchors),
                static_cast<double>(s.anchors_wanted),
                static_cast<double>(s.anchors_eligible)};
    reduced_.insert(reduced_.end(), s.slot_count.begin(), s.slot_count.end());
    reduced_.insert(reduced_.end(), s.slot_correct.begin(), s.slot_correct.end());
    communicator_.all_reduce_sum(reduced_);
    s.loss_sum = reduced_[0];
    s.weight_sum = reduced_[1];
    s.accepted_sum = reduced_[2];
    s.anchors = static_cast<std::int64_t>(reduced_[3]);
    s.anchors_wanted = static_cast<std::int64_t>(reduced_[4]);
    s.anchors_eligible = static_cast<std::int64_t>(reduced_[5]);
    const std::size_t width = s.slot_count.size();
    for (std::size_t k = 0; k < width; ++k) {
        s.slot_count[k] = reduced_[6 + k];
        s.slot_correct[k] = reduced_[6 + width + k];
    }
}

StepMetrics StepRunner::run(const Context& context, FeatureSource& source, const StepPlan& plan) {
    StepMetrics metrics;
    LossStatistics total;
    for (std::int64_t i = 0; i < plan.micro_batches; ++i) {
        const FeatureBatch batch = source.next(context);
        const LossStatistics statistics = forward_micro_batch(context, batch, /*want_gradient=*/true);
        if (!std::isfinite(statistics.loss_sum)) {
            throw_failed("step {}: the loss is {} in micro-batch {} of epoch {}: lower --lr, or look at the data of that micro-batch",
                         plan.step, statistics.loss_sum, batch.batch->index, batch.batch->epoch);
        }
        if (i == 0) {
            metrics.epoch = batch.batch->epoch;
            metrics.first_micro_batch = batch.batch->index;
        }
        draft_step_.backward(context, model_, batch.features, anchors_, optimizer_.gradients(), {},
                             i == 0 ? Write::kOverwrite : Write::kAccumulate);
        total.add(statistics);
        metrics.tokens += batch.batch->tokens();
    }
    for (const NamedTensor& gradient : optimizer_.named_gradients()) communicator_.all_reduce_sum(gradient.tensor);
    reduce(total);

    metrics.step = plan.step;
    metrics.lr = plan.lr;
    metrics.gradient_norm = optimizer_.gradient_norm(context, total.weight_sum);
    if (!std::isfinite(metrics.gradient_norm)) {
        throw_failed("step {}: the gradient's norm is {}: lower --lr or --max-grad-norm", plan.step, metrics.gradient_norm);
    }
    optimizer_.update(context, {.lr = plan.lr, .weight_sum = total.weight_sum, .max_grad_norm = plan.max_grad_norm, .step = plan.step},
                      metrics.gradient_norm);
    metrics.loss = total.weight_sum == 0 ? 0.0 : total.loss_sum / total.weight_sum;
    metrics.weight_sum = total.weight_sum;
    metrics.accuracy = slot_accuracy(total);
    metrics.estimated_acceptance_length = total.estimated_acceptance_length();
    metrics.anchors_wanted = total.anchors_wanted;
    metrics.anchors_eligible = total.anchors_eligible;
    metrics.anchors_used = total.anchors;
    return metrics;
}

LossStatistics StepRunner::measure(const Context& context, FeatureSource& source, std::int64_t micro_batches) {
    LossStatistics total;
    for (std::int64_t i = 0; i < micro_batches; ++i) {
        total.add(forward_micro_batch(context, source.next(context), /*want_gradient=*/false));
    }
    reduce(total);
    return total;
}

}  // namespace dflash
