// SPDX-License-Identifier: MIT
// The loss over the weighted rows of the last forward, chunk by chunk:
//   gather hidden rows -> product with the head -> row kernel (loss, gradient of logits in place) -> product back.
// Rows without weight never meet the head. The row kernel's gradients are un-weighted, and a row's weight multiplies its hidden gradient at
// the end, so that D-PACE, whose weights need the probabilities of a whole block, takes one pass like any other weighting.
#include <algorithm>
#include <array>

#include "draft/draft_step_impl.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"

namespace dflash {
namespace {

// The compact list of weighted rows; returns its length.
std::int64_t list_weighted_rows(const AnchorSet& anchors, const LossViews& loss) {
    std::int64_t count = 0;
    for (std::int64_t row = 0; row < anchors.live_rows(); ++row) {
        const auto at = static_cast<std::size_t>(row);
        if (anchors.labels[at] < 0) continue;
        loss.rows.i32()[count] = static_cast<std::int32_t>(row);
        loss.teacher_rows.i32()[count] = anchors.teacher_row[at];
        loss.labels.i32()[count] = anchors.labels[at];
        loss.weight.f32()[count] = anchors.weight[at];
        ++count;
    }
    return count;
}

// Multiplies the weights by D-PACE's: s_k = (1 - alpha) q_k + alpha, P_k = s_1 .. s_k, weight_k = P_k + P_{k+1} + ... + P_last over the
// labelled slots of a block (labels are prefix-closed, so these follow one another in the compact list).
void apply_dpace(std::int64_t block_size, double alpha, std::int64_t count, const LossViews& loss) {
    const std::int32_t* rows = loss.rows.i32();
    for (std::int64_t begin = 0; begin < count;) {
        std::int64_t end = begin;
        std::array<double, 64> product{};  // block_size <= 64
        double running = 1;
        while (end < count && rows[end] / block_size == rows[begin] / block_size) {
            running *= (1 - alpha) * static_cast<double>(loss.label_prob.f32()[end]) + alpha;
            product[static_cast<std::size_t>(end - begin)] = running;
            ++end;
        }
        double suffix = 0;
        for (std::int64_t i = end; i-- > begin;) {
            suffix += product[static_cast<std::size_t>(i - begin)];
            loss.weight.f32()[i] *= static_cast<float>(suffix);
        }
        begin = end;
    }
}

LossStatistics gather_statistics(const DraftSpec& spec, const AnchorSet& anchors, std::int64_t count, const LossViews& loss) {
    LossStatistics statistics;
    statistics.slot_count.assign(static_cast<std::size_t>(spec.block_size), 0.0);
    statistics.slot_correct.assign(static_cast<std::size_t>(spec.block_size), 0.0);
    statistics.anchors = anchors.num_live;
    statistics.anchors_wanted = anchors.capacity;
    statistics.anchors_eligible = anchors.num_eligible;
    std::int64_t block = -1;
    bool prefix = true;
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t row = loss.rows.i32()[i];
        const auto slot = static_cast<std::size_t>(row % spec.block_size);
        const bool correct = loss.correct.i32()[i] != 0;
        const auto weight = static_cast<double>(loss.weight.f32()[i]);
        statistics.loss_sum += weight * static_cast<double>(loss.loss.f32()[i]);
        statistics.weight_sum += weight;
        statistics.slot_count[slot] += 1;
        statistics.slot_correct[slot] += correct ? 1 : 0;
        prefix = correct && (row / spec.block_size != block || prefix);
        statistics.accepted_sum += prefix ? 1 : 0;
        block = row / spec.block_size;
    }
    return statistics;
}

}  // namespace

void LossStatistics::add(const LossStatistics& other) {
    loss_sum += other.loss_sum;
    weight_sum += other.weight_sum;
    slot_count.resize(std::max(slot_count.size(), other.slot_count.size()), 0.0);
    slot_correct.resize(slot_count.size(), 0.0);
    for (std::size_t k = 0; k < other.slot_count.size(); ++k) {
        slot_count[k] += other.slot_count[k];
        slot_correct[k] += other.slot_correct[k];
    }
    accepted_sum += other.accepted_sum;
    anchors += other.anchors;
    anchors_wanted += other.anchors_wanted;
    anchors_eligible += other.anchors_eligible;
}

double LossStatistics::estimated_acceptance_length() const {
    return anchors == 0 ? 1.0 : 1.0 + accepted_sum / static_cast<double>(anchors);
}

LossStatistics DraftStep::loss(const Context& context, const DraftModel& model, const TargetFeatures& features, const AnchorSet& anchors,
                               const Tensor& target_head, bool want_gradient) {
    const Impl& step = *impl_;
    const LossViews& loss = step.views.loss;
    const bool kl = step.settings.loss == LossKind::kKl;
    DFLASH_CHECK(step.num_live == anchors.num_live, "loss of {} blocks after a forward of {}", anchors.num_live, step.num_live);
    DFLASH_CHECK(!kl || (features.final_state.defined() && target_head.defined()), "the kl loss needs the target's final state and head");
    const std::int64_t count = list_weighted_rows(anchors, loss);
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
    if (step.settings.weighting == Weighting::kDpace) apply_dpace(step.spec.block_size, step.settings.dpace_alpha, count, loss);
    if (want_gradient) {
        fill_zero(context, first_rows(step.views.d_hidden, step.rows()));
        scatter_rows(context, {first_rows(step.views.hidden, count), first_rows(loss.rows, count), first_rows(loss.weight, count),
                               step.views.d_hidden});
    }
    return gather_statistics(step.spec, anchors, count, loss);
}

}  // namespace dflash
