// SPDX-License-Identifier: MIT
#include "kernels/rms_norm.h"

#include "kernels/backends.h"
#include "kernels/checks.h"

namespace dflash {

void rms_norm_forward(const Context& context, const RmsNormForwardParams& p) {
    constexpr const char* kOp = "rms_norm_forward";
    const std::int64_t rows = p.x.rows();
    const std::int64_t columns = p.weight.elements();
    check_rows(context, kOp, "x", p.x, p.x.dtype, rows, columns);
    check_rows(context, kOp, "y", p.y, p.x.dtype, rows, columns);
    if (p.residual.defined()) check_rows(context, kOp, "residual", p.residual, p.x.dtype, rows, columns);
    if (p.rstd.defined()) check_vector(context, kOp, "rstd", p.rstd, DType::kF32, rows);
    if (rows > 0) on_device(context.device(), cpu::rms_norm_forward, cuda::rms_norm_forward)(context, p);
}

void rms_norm_backward(const Context& context, const RmsNormBackwardParams& p) {
    constexpr const char* kOp = "rms_norm_backward";
    const std::int64_t rows = p.x.rows();
    const std::int64_t columns = p.weight.elements();
    check_rows(context, kOp, "x", p.x, p.x.dtype, rows, columns);
    check_rows(context, kOp, "d_y", p.d_y, p.x.dtype, rows, columns);
    check_rows(context, kOp, "d_x", p.d_x, p.x.dtype, rows, columns);
    check_vector(context, kOp, "rstd", p.rstd, DType::kF32, rows);
    check_vector(context, kOp, "d_weight", p.d_weight, p.d_weight.dtype, columns);
    if (rows > 0) on_device(context.device(), cpu::rms_norm_backward, cuda::rms_norm_backward)(context, p);
}

std::size_t rms_norm_backward_workspace_bytes(Device device, std::int64_t columns) {
    return on_device(device, cpu::rms_norm_backward_workspace_bytes, cuda::rms_norm_backward_workspace_bytes)(columns);
}

void gated_rms_norm_forward(const Context& context, const GatedRmsNormParams& p) {
    constexpr const char* kOp = "gated_rms_norm_forward";
    const std::int64_t rows = p.x.elements() / std::max<std::int64_t>(p.weight.elements(), 1);
    check_vector(context, kOp, "x", p.x, p.x.dtype, rows * p.weight.elements());
    check_vector(context, kOp, "z", p.z, p.x.dtype, p.x.elements());
    check_vector(context, kOp, "weight", p.weight, DType::kF32, p.weight.elements());
    check_vector(context, kOp, "y", p.y, p.x.dtype, p.x.elements());
    if (rows > 0) on_device(context.device(), cpu::gated_rms_norm_forward, cuda::gated_rms_norm_forward)(context, p);
}

}  // namespace dflash
