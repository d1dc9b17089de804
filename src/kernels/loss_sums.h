// SPDX-License-Identifier: MIT
// What happens between the loss rows of a micro-batch and its sums, on the device: D-PACE's weights, and the statistics that training
// reports. Rows come as the compact, sorted list of weighted rows; a block's labelled slots follow one another in it.
#pragma once

#include "kernels/context.h"
#include "tensor/tensor.h"

namespace dflash {

constexpr std::int64_t kMaxBlockSize = 64;

// Multiplies the weights by D-PACE's: s_k = (1 - alpha) q_k + alpha, P_k = s_1 .. s_k, weight_k = P_k + P_{k+1} + ... + P_last over the
// labelled slots of a block.
struct DpaceWeightsParams {
    Tensor rows;        // i32 (n): row of the micro-batch; its block is row / block_size
    Tensor label_prob;  // f32 (n)
    std::int64_t block_size = 0;
    double alpha = 0;
    Tensor weight;  // f32 (n), in place
};
void dpace_weights(const Context& context, const DpaceWeightsParams& params);

// Places in the sums of a step, f64 (3 + 2 W).
constexpr std::int64_t kLossSum = 0, kWeightSum = 1, kAcceptedSum = 2, kSlotCount = 3;  // then W counts, then W counts of correct slots
constexpr std::int64_t loss_sums_size(std::int64_t block_size) { return kSlotCount + 2 * block_size; }

struct LossSumsParams {
    Tensor rows;     // i32 (n)
    Tensor loss;     // f32 (n)
    Tensor weight;   // f32 (n)
    Tensor correct;  // i32 (n)
    std::int64_t block_size = 0;
    Tensor
        sums;  // f64 (3 + 2 W), +=: sum(w l), sum(w), correct slots in an unbroken run from the block's first labelled slot, counts, correct
};
void loss_sums(const Context& context, const LossSumsParams& params);

}  // namespace dflash
