// SPDX-License-Identifier: MIT
#include "kernels/linear.h"

#include "kernels/backends.h"
#include "kernels/checks.h"

namespace dflash {

namespace {

// CUDA works on bf16 activations too; the three tensors of a product share one dtype there except for f32 results.
DType activation_dtype(const Context& context, const Tensor& tensor) {
    return context.device().type == DeviceType::kCpu ? DType::kF32 : tensor.dtype;
}

void check_product(const Context& context, const char* op, const Tensor& rows_in, const char* rows_in_name, const Tensor& weight,
                   const char* weight_name, const Tensor& rows_out, const char* rows_out_name) {
    const std::int64_t rows = rows_in.rows();
    const std::int64_t out = weight.rows();
    const std::int64_t in = weight.row_elements();
    DFLASH_CHECK(out > 0 && in > 0, "{}: {} has shape {}", op, weight_name, weight.shape.to_string());
    check_rows(context, op, rows_in_name, rows_in, activation_dtype(context, rows_in), rows, in);
    check_rows(context, op, weight_name, weight, activation_dtype(context, weight), out, in);
    check_rows(context, op, rows_out_name, rows_out, activation_dtype(context, rows_out), rows, out);
}

}  // namespace

void linear_forward(const Context& context, const LinearForwardParams& p) {
    check_product(context, "linear_forward", p.x, "x", p.weight, "weight", p.y, "y");
    if (p.x.rows() > 0) context.matmul().forward(context, p);
}

void linear_backward_input(const Context& context, const LinearBackwardInputParams& p) {
    check_product(context, "linear_backward_input", p.d_x, "d_x", p.weight, "weight", p.d_y, "d_y");
    if (p.d_y.rows() > 0) context.matmul().backward_input(context, p);
}

void linear_backward_weight(const Context& context, const LinearBackwardWeightParams& p) {
    check_product(context, "linear_backward_weight", p.x, "x", p.d_weight, "d_weight", p.d_y, "d_y");
    context.matmul().backward_weight(context, p);
}

std::size_t linear_workspace_bytes(Device device, const std::vector<LinearShape>& shapes) {
    return on_device(device, cpu::linear_workspace_bytes, cuda::linear_workspace_bytes)(device, shapes);
}

void linear_prepare(const Context& context, const std::vector<LinearShape>& shapes) { context.matmul().prepare(shapes); }

}  // namespace dflash
