// SPDX-License-Identifier: MIT
#include "kernels/head_norm_rope.h"

#include "kernels/backends.h"
#include "kernels/checks.h"

namespace dflash {

namespace {

void check_angles(const Context& context, const char* op, const Tensor& positions, const Tensor& cos, const Tensor& sin, std::int64_t rows,
                  std::int64_t head_dim) {
    check_vector(context, op, "positions", positions, DType::kI32, rows);
    check_rows(context, op, "cos", cos, DType::kF32, cos.rows(), cos.row_elements());
    check_rows(context, op, "sin", sin, DType::kF32, cos.rows(), cos.row_elements());
    DFLASH_CHECK(2 * cos.row_elements() <= head_dim, "{}: {} rotary dimensions of a head of {}", op, 2 * cos.row_elements(), head_dim);
    if (context.device().type != DeviceType::kCpu) return;
    for (std::int64_t r = 0; r < rows; ++r) {
        const std::int32_t position = positions.i32()[r];
        DFLASH_CHECK(position >= 0 && position < cos.rows(), "{}: row {} stands at position {}, the angle table holds {}", op, r, position,
                     cos.rows());
    }
}

}  // namespace

void head_norm_rope_forward(const Context& context, const HeadNormRopeForwardParams& p) {
    constexpr const char* kOp = "head_norm_rope_forward";
    DFLASH_CHECK(p.y.shape.rank() == 3, "{}: y has shape {}, expected (rows, heads, D)", kOp, p.y.shape.to_string());
    const std::int64_t rows = p.y.shape[0];
    const std::int64_t heads = p.y.shape[1];
    const std::int64_t head_dim = p.y.shape[2];
    DFLASH_CHECK(p.x.defined() || rows == 0, "{}: x is missing", kOp);
    DFLASH_CHECK(p.x.dtype == p.y.dtype, "{}: x is {}, y is {}", kOp, dtype_name(p.x.dtype), dtype_name(p.y.dtype));
    if (p.x_head_stride == 0 && p.x_row_stride == 0) check_rows(context, kOp, "x", p.x, p.y.dtype, rows, heads * head_dim);
    check_rows(context, kOp, "y", p.y, p.y.dtype, rows, heads * head_dim);
    if (p.weight.defined()) check_vector(context, kOp, "weight", p.weight, p.weight.dtype, head_dim);
    if (p.rstd.defined()) {
        DFLASH_CHECK(p.weight.defined(), "{}: rstd is asked for, but there is no norm", kOp);
        check_vector(context, kOp, "rstd", p.rstd, DType::kF32, rows * heads);
    }
    check_angles(context, kOp, p.positions, p.cos, p.sin, rows, head_dim);
    if (rows > 0) on_device(context.device(), cpu::head_norm_rope_forward, cuda::head_norm_rope_forward)(context, p);
}

void head_norm_rope_backward(const Context& context, const HeadNormRopeBackwardParams& p) {
    constexpr const char* kOp = "head_norm_rope_backward";
    DFLASH_CHECK(p.x.shape.rank() == 3, "{}: x has shape {}, expected (rows, heads, D)", kOp, p.x.shape.to_string());
    const std::int64_t rows = p.x.shape[0];
    const std::int64_t heads = p.x.shape[1];
    const std::int64_t head_dim = p.x.shape[2];
    for (const auto& [name, tensor] : {std::pair{"x", &p.x}, {"d_y", &p.d_y}, {"d_x", &p.d_x}}) {
        check_rows(context, kOp, name, *tensor, p.x.dtype, rows, heads * head_dim);
    }
    check_vector(context, kOp, "weight", p.weight, p.weight.dtype, head_dim);
    check_vector(context, kOp, "d_weight", p.d_weight, p.d_weight.dtype, head_dim);
    check_vector(context, kOp, "rstd", p.rstd, DType::kF32, rows * heads);
    check_angles(context, kOp, p.positions, p.cos, p.sin, rows, head_dim);
    if (rows > 0) on_device(context.device(), cpu::head_norm_rope_backward, cuda::head_norm_rope_backward)(context, p);
}

std::size_t head_norm_rope_backward_workspace_bytes(Device device, std::int64_t head_dim) {
    return on_device(device, cpu::head_norm_rope_backward_workspace_bytes, cuda::head_norm_rope_backward_workspace_bytes)(head_dim);
}

}  // namespace dflash
