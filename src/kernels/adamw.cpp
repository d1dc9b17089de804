// SPDX-License-Identifier: MIT
#include "kernels/adamw.h"

#include "kernels/backends.h"
#include "kernels/checks.h"

namespace dflash {

void adamw_step(const Context& context, const AdamWParams& p) {
    constexpr const char* kOp = "adamw_step";
    DFLASH_CHECK(p.tensors != nullptr && p.step >= 1, "{}: step {}", kOp, p.step);
    for (const AdamWTensor& t : *p.tensors) {
        const std::int64_t n = t.weight.elements();
        check_master(context, kOp, t.weight, t.remainder, n);
        check_gradient(context, kOp, t.gradient, n);
        check_vector(context, kOp, "m", t.m, DType::kF32, n);
        check_vector(context, kOp, "v", t.v, DType::kF32, n);
    }
    check_vector(context, kOp, "grad_scale", p.grad_scale, DType::kF64, 1);
    on_device(context.device(), cpu::adamw_step, cuda::adamw_step)(context, p);
}

void gradient_scale(const Context& context, const GradientScaleParams& p) {
    constexpr const char* kOp = "gradient_scale";
    DFLASH_CHECK(p.gradients != nullptr && p.sums.elements() > kWeightSum, "{}: gradients or sums are missing", kOp);
    for (const Tensor& t : *p.gradients) check_gradient(context, kOp, t, t.elements());
    check_vector(context, kOp, "sums", p.sums, DType::kF64, p.sums.elements());
    check_vector(context, kOp, "norm", p.norm, DType::kF64, 1);
    check_vector(context, kOp, "scale", p.scale, DType::kF64, 1);
    on_device(context.device(), cpu::gradient_scale, cuda::gradient_scale)(context, p);
}

std::size_t gradient_scale_workspace_bytes(Device device) {
    return on_device(device, cpu::gradient_scale_workspace_bytes, cuda::gradient_scale_workspace_bytes)();
}

}  // namespace dflash
