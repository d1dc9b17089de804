// SPDX-License-Identifier: MIT
// Fused anchor attention on a CUDA device: picks the matrix back end, refuses what has no fused kernel, and queues the work on a stream.
// Arguments as in kernels/anchor_attention.h, bf16 only. Blocks should be sorted by anchor row: any order gives the same result, but only
// sorted blocks share key tiles. Memory beyond inputs and outputs: `lse` and `delta`.
#pragma once

#include "kernels/anchor_attention.h"
#include "kernels/cuda/attention_choice.h"

namespace dflash::cuda {

// Of the current device.
int compute_capability();

// `kernel` is one of attention_kernels(). multiprocessors: those that the Hopper back end may use, 0 = all; no result depends on it.
void launch_anchor_attention_forward(const Stream& stream, const AnchorAttentionForwardParams& params, const AttentionKernel& kernel,
                                     int multiprocessors = 0);
void launch_anchor_attention_backward(const Stream& stream, const AnchorAttentionBackwardParams& params, const AttentionKernel& kernel,
                                      int multiprocessors = 0);

}  // namespace dflash::cuda
