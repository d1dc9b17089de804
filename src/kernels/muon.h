// SPDX-License-Identifier: MIT
// Muon (Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024) on one matrix, with the update's size matched to AdamW's
// (Liu et al., "Muon is scalable for LLM training", 2025), so that both share one learning rate:
//   g' = g * grad_scale;  m = momentum m + g';  u = g' + momentum m;  x = u / |u|;
//   five times: a = x x^T (or x^T x for tall matrices), x = 3.4445 x + (-4.7750 a + 2.0315 a a) x;
//   w = (1 - lr weight_decay) w - lr 0.2 sqrt(max(rows, columns)) x
// The products run in the working dtype. The scale is read on the device; not finite: nothing is updated.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/context.h"
#include "kernels/linear.h"
#include "tensor/tensor.h"

namespace dflash {

// Scratch of the orthogonalisation, shared by all matrices of a run; working dtype.
struct MuonScratch {
    Tensor x, next;             // room for the largest matrix each
    Tensor gram, gram_squared;  // room for the square of the largest smaller side each
};
struct MuonScratchSize {
    std::int64_t matrix_elements = 0;
    std::int64_t gram_elements = 0;
};
MuonScratchSize muon_scratch_size(const std::vector<Shape>& matrices);
// The products that these matrices ask for, to be planned and prepared with those of the step.
std::vector<LinearShape> muon_linears(const std::vector<Shape>& matrices);

struct MuonParams {
    Tensor weight;     // (rows, columns), updated in place: f32, or bf16 with `remainder` as in kernels/adamw.h
    Tensor remainder;  // u16
    Tensor gradient;   // f32 or bf16 (rows, columns), read
    Tensor momentum;   // f32 (rows, columns), updated
    MuonScratch scratch;
    float lr = 0.0F;
    float decay = 0.95F;  // of the momentum
    float weight_decay = 0.0F;
    Tensor grad_scale;  // f64 (1)
};
void muon_step(const Context& context, const MuonParams& params);

// Its two ops of its own.
// m = decay m + s g;  x = s g + decay m, divided by its Frobenius norm (left at zero where it is all zero). Scale s not finite: m stays, x = 0.
struct MuonMomentumParams {
    Tensor gradient, momentum;  // as above
    float decay = 0.0F;
    Tensor grad_scale;  // f64 (1)
    Tensor x;           // working dtype (rows, columns), =
};
void muon_momentum(const Context& context, const MuonMomentumParams& params);
// w = keep w - rate x, where the scale is finite.
struct MuonUpdateParams {
    Tensor weight, remainder;  // as above
    Tensor x;                  // working dtype
    float rate = 0.0F, keep = 1.0F;
    Tensor grad_scale;  // f64 (1)
};
void muon_update(const Context& context, const MuonUpdateParams& params);

}  // namespace dflash
