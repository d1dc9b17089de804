// SPDX-License-Identifier: MIT
// The drafter's optimizer over named tensors in a fixed order: AdamW (beta 0.9 / 0.999, weight decay 0) for all of them, or Muon for the
// matrices and AdamW for the norms; with the gradient's norm and its clipping. Gradients come in summed and un-normalised, over
// all micro-batches and ranks of the step; they are scaled once, here.
// All memory is planned ("draft.gradient.*", "optimizer.m.*", "optimizer.v.*", "optimizer.muon.*").
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "draft/draft_weights.h"
#include "kernels/adamw.h"
#include "kernels/context.h"
#include "kernels/muon.h"
#include "tensor/arena.h"
#include "tensor/plan.h"

namespace dflash {

enum class OptimizerKind { kAdamW, kMuon };

// When the optimizer's buffers live: gradients by published name, moments always, Muon's scratch during the update.
struct OptimizerLifetimes {
    std::function<Lifetime(const std::string&)> gradient;
    Lifetime persistent;
    Lifetime update;
};
struct OptimizerSettings {
    OptimizerKind kind = OptimizerKind::kAdamW;
    Device device = {};
    DType matrix_gradients = DType::kF32;  // f32 or, on CUDA, bf16; those of the norms are f32
};
std::vector<BufferSpec> optimizer_buffers(const DraftSpec& spec, const OptimizerSettings& settings, const OptimizerLifetimes& lifetimes);
// Products that the update asks for: none with AdamW. And the scratch of its other ops.
std::vector<LinearShape> optimizer_linears(const DraftSpec& spec, OptimizerKind kind);
std::size_t optimizer_workspace_bytes(Device device);

struct OptimizerStep {
    double lr = 0;
    double max_grad_norm = 0;  // 0 = no clipping
    std::int64_t step = 1;     // from 1
};

class Optimizer {
public:
    // Views into the arena, which says by what was planned whether a tensor has a second moment; `masters` are updated in place.
    Optimizer(const DraftSpec& spec, const DraftMasters& masters, const Arena& arena);

    const DraftTensors& gradients() const { return gradients_; }
    const std::vector<NamedTensor>& named_gradients() const { return named_gradients_; }
    // What a checkpoint holds, by published name.
    struct State {
        std::string name;
        Tensor weight, remainder;
        Tensor m;
        Tensor v;  // undefined for Muon's matrices
    };
    const std::vector<State>& state() const { return state_; }

    void zero_moments(const Context& context);
    // Scales the gradients by the step's sums (kernels/loss_sums.h; weight sum 0 = nothing was supervised, and they count as 0), clips, updates.
    // Where the loss or the norm is not finite nothing is updated. Nothing waits for the device.
    void update(const Context& context, const OptimizerStep& step, const Tensor& sums);
    // Norm of the last update's gradient after division by the weight sum, before clipping: waits for the device. NaN or infinite: that
    // update, or one before it that nobody asked about, was left out.
    double gradient_norm(const Context& context) const;

private:
    DraftTensors gradients_;
    std::vector<NamedTensor> named_gradients_;
    std::vector<State> state_;
    std::vector<AdamWTensor> adamw_tensors_;
    std::vector<MuonParams> muon_matrices_;
    std::vector<Tensor> gradient_list_;
    Tensor norm_, scale_;  // f64 (1)
};

}  // namespace dflash
