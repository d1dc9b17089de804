// SPDX-License-Identifier: MIT
// Muon (Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024) on one matrix, with the update's size matched to AdamW's
// (Liu et al., "Muon is scalable for LLM training", 2025), so that both share one learning rate:
//   g' = g * grad_scale;  m = momentum m + g';  u = g' + momentum m;  x = u / |u|;
//   five times: a = x x^T (or x^T x for tall matrices), x = 3.4445 x + (-4.7750 a + 2.0315 a a) x;
//   w = (1 - lr weight_decay) w - lr 0.2 sqrt(max(rows, columns)) x
// Made of the linear products and axpby, so it runs wherever those do and needs no code of its own on a device.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/context.h"
#include "kernels/linear.h"
#include "tensor/tensor.h"

namespace dflash {

// Scratch of the orthogonalisation, shared by all matrices of a run; f32.
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
    Tensor weight;    // f32 (rows, columns), updated in place
    Tensor gradient;  // f32 (rows, columns), read
    Tensor momentum;  // f32 (rows, columns), updated
    MuonScratch scratch;
    float lr = 0.0F;
    float decay = 0.95F;  // of the momentum
    float weight_decay = 0.0F;
    double grad_scale = 1.0;
};
void muon_step(const Context& context, const MuonParams& params);

}  // namespace dflash
