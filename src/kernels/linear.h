// SPDX-License-Identifier: MIT
// Matrix products of a linear layer with weight W (out, in), row-major as on disk: y = x W^T, no bias.
//   forward          y (rows, out)  = or += x (rows, in) W^T
//   backward input   d_x (rows, in) = or += d_y (rows, out) W
//   backward weight  d_w (out, in)  = or += d_y^T x
// Operands have the working dtype; a result has it too, or is f32. Sums are fp32. The same rows give the same bits.
// CPU: oneDNN. Rows are cut into power-of-two pieces, so that a run with varying row counts needs a small fixed set of
// compiled products. CUDA: cuBLASLt, one algorithm for each power of two that row counts are rounded up to; operands aligned to 16 bytes
// (or to what divides their rows, where that is less). linear_prepare() makes all of it ahead of the loop.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/context.h"
#include "tensor/tensor.h"

namespace dflash {

enum class Write : std::uint8_t { kOverwrite, kAccumulate };  // = or +=

struct LinearForwardParams {
    Tensor x;       // (rows, in)
    Tensor weight;  // (out, in)
    Tensor y;       // (rows, out)
    Write write = Write::kOverwrite;
};
void linear_forward(const Context& context, const LinearForwardParams& params);

struct LinearBackwardInputParams {
    Tensor d_y;     // (rows, out)
    Tensor weight;  // (out, in)
    Tensor d_x;     // (rows, in)
    Write write = Write::kOverwrite;
};
void linear_backward_input(const Context& context, const LinearBackwardInputParams& params);

struct LinearBackwardWeightParams {
    Tensor d_y;       // (rows, out)
    Tensor x;         // (rows, in)
    Tensor d_weight;  // (out, in)
    Write write = Write::kAccumulate;
};
void linear_backward_weight(const Context& context, const LinearBackwardWeightParams& params);

// One use of linear layers in a run, for planning and preparation.
struct LinearShape {
    std::int64_t max_rows = 0;
    std::int64_t in = 0;
    std::int64_t out = 0;
    bool forward = true;
    bool backward_input = false;
    bool backward_weight = false;
};
// Bytes of workspace that bind_workspace() must offer for all of these (the largest need). Pure; needs no memory.
std::size_t linear_workspace_bytes(Device device, const std::vector<LinearShape>& shapes);
// Compiles every product these shapes can ask for, so that the loop compiles nothing.
void linear_prepare(const Context& context, const std::vector<LinearShape>& shapes);

}  // namespace dflash
