// SPDX-License-Identifier: MIT
// The softmax of an attention that does materialise its scores: only for benches, beside the fused one (kernels/anchor_attention.h), whose
// mask it shares. Columns are the S context rows, then the A*W block keys; the scores are those of one head.
//   forward    p = softmax(scale * scores) over what the mask shows, 0 elsewhere and in rows that see nothing
//   backward   d_scores = scale * p * (d_p - sum over columns of p * d_p)
#pragma once

#include "kernels/anchor_attention.h"

namespace dflash {

struct MaskedSoftmaxParams {
    Tensor scores;  // f32 (A*W, S + A*W)
    AnchorAttentionMask mask;
    float scale = 1.0F;
    Tensor p;  // working dtype (A*W, S + A*W), =
};
void masked_softmax_forward(const Context& context, const MaskedSoftmaxParams& params);

struct MaskedSoftmaxBackwardParams {
    Tensor p;    // working dtype (rows, columns)
    Tensor d_p;  // f32 (rows, columns)
    float scale = 1.0F;
    Tensor d_scores;  // working dtype (rows, columns), =
};
void masked_softmax_backward(const Context& context, const MaskedSoftmaxBackwardParams& params);

}  // namespace dflash
