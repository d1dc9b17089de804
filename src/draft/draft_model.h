// SPDX-License-Identifier: MIT
// The drafter's step: anchors -> forward -> loss -> backward, each a function over planned memory. Forward keeps what backward reads in
// DraftActivations; loss is chunked over rows so that full logits never exist; gradients accumulate (+=) un-normalised.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "draft/anchors.h"
#include "draft/draft_spec.h"
#include "draft/draft_weights.h"
#include "kernels/context.h"
#include "kernels/linear.h"
#include "target/features.h"
#include "tensor/arena.h"
#include "tensor/plan.h"

namespace dflash {

enum class LossKind { kCrossEntropy, kKl };
enum class Weighting { kDecay, kDpace };
// What backward makes again instead of keeping it: nothing; queries, keys, values and attention's output; or the whole layer from its input.
enum class Recompute { kNone, kAttention, kLayer };

struct DraftStepSettings {
    std::int64_t max_tokens = 0;     // S capacity
    std::int64_t max_anchors = 0;    // A
    std::int64_t loss_chunk = 1024;  // rows of logits at a time
    LossKind loss = LossKind::kCrossEntropy;
    Weighting weighting = Weighting::kDecay;
    double dpace_alpha = 0.5;
    Recompute recompute = Recompute::kNone;
    Device device = {};
};

// Which phases of the composed plan are which; made by train. Features stay alive from `context` on: the taps to `context_backward` (fc's
// gradient reads them), the final state (kl) to `loss`.
struct DraftPhases {
    int context = 0;           // fc and hidden_norm
    std::vector<int> forward;  // (L)
    int loss = 0;
    std::vector<int> backward;  // (L) backward[i] is layer i's; runs L-1 .. 0
    int context_backward = 0;
    int optimizer = 0;
    Lifetime persistent;
};

// Buffers "draft.step.*": activations from their forward phase to their backward phase, loss chunk, gradients of activations.
std::vector<BufferSpec> draft_step_buffers(const DraftSpec& spec, const DraftStepSettings& settings, const DraftPhases& phases);
std::vector<LinearShape> draft_step_linears(const DraftSpec& spec, const DraftStepSettings& settings);
// Scratch of its ops, products included.
std::size_t draft_step_workspace_bytes(const DraftSpec& spec, const DraftStepSettings& settings);

struct DraftModel {
    DraftSpec spec;
    DraftTensors weights;
    Tensor embedding;  // f32 (V, C), the target's (or the drafter's own)
    Tensor head;       // f32 (V, C), the target's (or the drafter's own, (draft V, C))
};

// Per-slot statistics of a micro-batch, summed in double.
struct LossStatistics {
    double loss_sum = 0;               // sum of w * l
    double weight_sum = 0;             // sum of w (after D-PACE)
    std::vector<double> slot_count;    // (W) rows with a label
    std::vector<double> slot_correct;  // (W) argmax equals the label
    double accepted_sum = 0;           // over live anchors: length of the correct prefix of labelled slots
    std::int64_t anchors = 0;
    std::int64_t anchors_wanted = 0, anchors_eligible = 0;
    // 1 + mean accepted prefix: an estimate of tokens per verify step.
    double estimated_acceptance_length() const;
};

class DraftStep {
public:
    DraftStep(const DraftSpec& spec, const DraftStepSettings& settings, const Arena& arena);
    ~DraftStep();

    // Hidden states after the last norm, f32 (live rows, C), valid until loss(); what backward needs is kept. A document longer than the
    // drafter's maximum positions is Error(kBadInput).
    Tensor forward(const Context& context, const DraftModel& model, const PackedBatch& batch, const TargetFeatures& features,
                   const AnchorSet& anchors);
    // Loss of the last forward. With want_gradient the hidden gradient is kept for backward; un-normalised (multiplied by w only).
    // kl needs features.final_state and `target_head`.
    // Its sums are added, on the device, to those since the last clear_sums().
    void loss(const Context& context, const DraftModel& model, const TargetFeatures& features, const AnchorSet& anchors,
              const Tensor& target_head, bool want_gradient);
    void clear_sums(const Context& context);
    // f64, places as in kernels/loss_sums.h; what the optimizer scales gradients by.
    const Tensor& sums() const;
    // The sums on the host: waits for the device.
    LossStatistics statistics(const Context& context) const;
    // gradients += of all trained tensors, or = with kOverwrite: a layer's gradients are then not touched before that layer's backward, so
    // that their memory may serve others until then. `on_gradient_ready(name)` is called as each tensor is complete, last layer first.
    void backward(const Context& context, const DraftModel& model, const TargetFeatures& features, const AnchorSet& anchors,
                  const DraftTensors& gradients, const std::function<void(const std::string&)>& on_gradient_ready = {},
                  Write write = Write::kAccumulate);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace dflash
