// SPDX-License-Identifier: MIT
// y = silu(gate) * up, elementwise, and its gradient. Also the sigmoid output gate of the hybrid family's attention. All tensors are in the
// device's working dtype.
#pragma once

#include "kernels/context.h"
#include "tensor/tensor.h"

namespace dflash {

struct SwigluForwardParams {
    Tensor gate;  // (rows, F)
    Tensor up;    // (rows, F)
    Tensor y;     // (rows, F), =; may be gate or up
};
void swiglu_forward(const Context& context, const SwigluForwardParams& params);

struct SwigluBackwardParams {
    Tensor d_y;     // (rows, F)
    Tensor gate;    // (rows, F)
    Tensor up;      // (rows, F)
    Tensor d_gate;  // (rows, F), =; may be gate
    Tensor d_up;    // (rows, F), =; may be up
    Tensor y;       // optional (rows, F), =: the forward's output made again (so that it need not be kept); may be d_y
};
void swiglu_backward(const Context& context, const SwigluBackwardParams& params);

struct SigmoidGateParams {
    Tensor gate;  // element (row, head, i) at row * row_stride + head * head_stride + i
    std::int64_t gate_row_stride = 0;
    std::int64_t gate_head_stride = 0;
    Tensor y;  // (rows, heads, D), y *= sigmoid(gate)
};
void sigmoid_gate_forward(const Context& context, const SigmoidGateParams& params);

}  // namespace dflash
