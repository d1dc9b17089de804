// SPDX-License-Identifier: MIT
// The drafter's optimizer: AdamW (beta 0.9 / 0.999, weight decay 0) over named tensors in a fixed order, with the gradient's norm and its
// clipping. Gradients come in summed and un-normalised, over all micro-batches and ranks of the step; they are scaled once, here.
// All memory is planned ("draft.gradient.*", "optimizer.m.*", "optimizer.v.*").
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "draft/draft_weights.h"
#include "kernels/adamw.h"
#include "kernels/context.h"
#include "tensor/arena.h"
#include "tensor/plan.h"

namespace dflash {

// Moments, persistent; and gradients, each for the lifetime that `gradient_lifetime` gives its published name.
std::vector<BufferSpec> optimizer_buffers(const DraftSpec& spec, const std::function<Lifetime(const std::string&)>& gradient_lifetime,
                                          Lifetime persistent);

struct OptimizerStep {
    double lr = 0;
    double weight_sum = 0;     // of the whole step; 0 = nothing was supervised, and gradients count as 0
    double max_grad_norm = 0;  // 0 = no clipping
    std::int64_t step = 1;     // from 1
};

class Optimizer {
public:
    // Views into the arena; `weights` are updated in place.
    Optimizer(const DraftSpec& spec, const DraftTensors& weights, const Arena& arena);

    const DraftTensors& gradients() const { return gradients_; }
    const std::vector<NamedTensor>& named_weights() const { return named_weights_; }
    const std::vector<NamedTensor>& named_gradients() const { return named_gradients_; }
    // Weight, m and v by published name: what a checkpoint holds.
    struct State {
        std::string name;
        Tensor weight, m, v;
    };
    const std::vector<State>& state() const { return state_; }

    void zero_moments(const Context& context);
    // Norm of the gradient after division by the weight sum, before clipping. Not finite = nothing may be updated: the caller stops.
    double gradient_norm(const Context& context, double weight_sum);
    void update(const Context& context, const OptimizerStep& step, double gradient_norm);

private:
    DraftTensors gradients_;
    std::vector<NamedTensor> named_weights_, named_gradients_;
    std::vector<State> state_;
    std::vector<AdamWTensor> tensors_;
    std::vector<Tensor> gradient_list_;
};

}  // namespace dflash
