// SPDX-License-Identifier: MIT
// The loss over the weighted rows of the last forward, chunk by chunk:
//   gather hidden rows -> product with the head -> row kernel (loss, gradient of logits in place) -> product back.
// Rows without weight never meet the head. The row kernel's gradients are un-weighted, and a row's weight multiplies its hidden gradient at
// the end, so that D-PACE, whose weights need the probabilities of a whole block, takes one pass like any other weighting.
#include <algorithm>

#include "draft/draft_step_impl.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/loss_sums.h"

namespace dflash {

void CompactRows::reserve(std::size_t count) {
    rows.reserve(count);
    teacher_rows.reserve(count);
    labels.reserve(count);
    weight.reserve(count);
}

void CompactRows::list(const AnchorSet& anchors) {
    rows.clear();
    teacher_rows.clear();
    labels.clear();
    weight.clear();
    for (std::int64_t row = 0; row < anchors.live_rows(); ++row) {
        const auto at = static_cast<std::size_t>(row);
        if (anchors.labels[at] < 0) continue;
        rows.push_back(static_cast<std::int32_t>(row));
        teacher_rows.push_back(anchors.teacher_row[at]);
        labels.push_back(anchors.labels[at]);
        weight.push_back(anchors.weight[at]);
    }
}

double LossStatistics::estimated_acceptance_length() const {
    return anchors == 0 ? 1.0 : 1.0 + accepted_sum / static_cast<double>(anchors);
}

void DraftStep::clear_sums(const Context& context) {
    fill_zero(context, impl_->views.sums);
    impl_->counted = {};
}

const Tensor& DraftStep::sums() const { return impl_->views.sums; }

LossStatistics DraftStep::statistics(const Context& context) const {
    std::vector<double>& sums = impl_->host_sums;
    context.download(impl_->views.sums, sums.data());
    LossStatistics statistics = impl_->counted;
    statistics.loss_sum = sums[kLossSum];
    statistics.weight_sum = sums[kWeightSum];
    statistics.accepted_sum = sums[kAcceptedSum];
    const auto slots = sums.begin() + kSlotCount;
    statistics.slot_count.assign(slots, slots + impl_->spec.block_size);
    statistics.slot_correct.assign(slots + impl_->spec.block_size, sums.end());
    return statistics;
}

void DraftStep::loss(const Context& context, const DraftModel& model, const TargetFeatures& features, const AnchorSet& anchors,
                     const Tensor& target_head, bool want_gradient) {
    Impl& step = *impl_;
    const LossViews& loss = step.views.loss;
    const bool kl = step.settings.loss == LossKind::kKl;
    DFLASH_CHECK(step.num_live == anchors.num_live, "loss of {} blocks after a forward of {}", anchors.num_live, step.num_live);
    DFLASH_CHECK(!kl || (features.final_state.defined() && target_head.defined()), "the kl loss needs the target's final state and head");
    step.compact.list(anchors);
    const auto count = static_cast<std::int64_t>(step.compact.rows.size());
    const Tensor all_rows = first_rows(loss.rows, count);
    const Tensor weight = first_rows(loss.weight, count);
    context.upload(std::span<const std::int32_t>(step.compact.rows), all_rows);
    context.upload(std::span<const std::int32_t>(step.compact.labels), first_rows(loss.labels, count));
    context.upload(std::span<const float>(step.compact.weight), weight);
    if (kl) context.upload(std::span<const std::int32_t>(step.compact.teacher_rows), first_rows(loss.teacher_rows, count));
    for (std::int64_t begin = 0; begin < count; begin += loss.logits.rows()) {
        const std::int64_t rows = std::min(loss.logits.rows(), count - begin);
        const Tensor hidden = first_rows(loss.hidden, rows);
        const Tensor logits = first_rows(loss.logits, rows);
        gather_rows(context, {step.views.hidden, loss.rows.slice_rows(begin, rows), hidden});
        linear_forward(context, {hidden, model.head, logits});
        CrossEntropyParams params;
        params.logits = logits;
        if (kl) {
            params.teacher_logits = first_rows(loss.teacher_logits, rows);
            const Tensor state = first_rows(loss.teacher_state, rows);
            gather_rows(context, {features.final_state, loss.teacher_rows.slice_rows(begin, rows), state});
            linear_forward(context, {state, target_head, params.teacher_logits});
        }
        params.labels = loss.labels.slice_rows(begin, rows);
        params.loss = loss.loss.slice_rows(begin, rows);
        params.label_prob = loss.label_prob.slice_rows(begin, rows);
        params.correct = loss.correct.slice_rows(begin, rows);
        params.want_gradient = want_gradient;
        cross_entropy_forward_backward(context, params);
        // The hidden state's memory takes the compact gradient: rows before begin + rows are never read again, because the list is sorted.
        if (want_gradient) linear_backward_input(context, {logits, model.head, step.views.hidden.slice_rows(begin, rows)});
    }
    if (step.settings.weighting == Weighting::kDpace) {
        dpace_weights(context, {.rows = all_rows,
                                .label_prob = first_rows(loss.label_prob, count),
                                .block_size = step.spec.block_size,
                                .alpha = step.settings.dpace_alpha,
                                .weight = weight});
    }
    if (want_gradient) {
        fill_zero(context, first_rows(step.views.d_x, step.rows()));
        scatter_rows(context, {first_rows(step.views.hidden, count), all_rows, weight, step.views.d_x});
    }
    loss_sums(context, {.rows = all_rows,
                        .loss = first_rows(loss.loss, count),
                        .weight = weight,
                        .correct = first_rows(loss.correct, count),
                        .block_size = step.spec.block_size,
                        .sums = step.views.sums});
    step.counted.anchors += anchors.num_live;
    step.counted.anchors_wanted += anchors.capacity;
    step.counted.anchors_eligible += anchors.num_eligible;
}

}  // namespace dflash
