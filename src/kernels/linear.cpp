// SPDX-License-Identifier: MIT
#include "kernels/linear.h"

#include "kernels/backends.h"
#include "kernels/checks.h"
#include "tensor/working_dtype.h"

namespace dflash {

namespace {

struct Operand {
    const char* name;
    const Tensor& tensor;
    bool result = false;  // f32, or the working dtype
};

void check_operand(const Context& context, const char* op, const Operand& operand, std::int64_t rows, std::int64_t columns) {
    const bool wide = operand.result && operand.tensor.dtype == DType::kF32;
    check_rows(context, op, operand.name, operand.tensor, wide ? DType::kF32 : working_dtype(context.device()), rows, columns);
}

// x (rows, in), weight (out, in), y (rows, out), or their gradients.
void check_product(const Context& context, const char* op, const Operand& x, const Operand& weight, const Operand& y) {
    const std::int64_t rows = x.tensor.rows();
    const std::int64_t out = weight.tensor.rows();
    const std::int64_t in = weight.tensor.row_elements();
    DFLASH_CHECK(out > 0 && in > 0, "{}: {} has shape {}", op, weight.name, weight.tensor.shape.to_string());
    check_operand(context, op, x, rows, in);
    check_operand(context, op, weight, out, in);
    check_operand(context, op, y, rows, out);
}

}  // namespace

void linear_forward(const Context& context, const LinearForwardParams& p) {
    check_product(context, "linear_forward", {"x", p.x}, {"weight", p.weight}, {"y", p.y, true});
    if (p.x.rows() > 0) context.matmul().forward(context, p);
}

void linear_backward_input(const Context& context, const LinearBackwardInputParams& p) {
    check_product(context, "linear_backward_input", {"d_x", p.d_x, true}, {"weight", p.weight}, {"d_y", p.d_y});
    if (p.d_y.rows() > 0) context.matmul().backward_input(context, p);
}

void linear_backward_weight(const Context& context, const LinearBackwardWeightParams& p) {
    check_product(context, "linear_backward_weight", {"x", p.x}, {"d_weight", p.d_weight, true}, {"d_y", p.d_y});
    context.matmul().backward_weight(context, p);
}

std::size_t linear_workspace_bytes(Device device, const std::vector<LinearShape>& shapes) {
    return on_device(device, cpu::linear_workspace_bytes, cuda::linear_workspace_bytes)(shapes);
}

void linear_prepare(const Context& context, const std::vector<LinearShape>& shapes) { context.matmul().prepare(shapes); }

}  // namespace dflash
