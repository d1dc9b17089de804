// SPDX-License-Identifier: MIT
#include "kernels/adamw.h"

#include "kernels/backends.h"
#include "kernels/checks.h"
#include "tensor/working_dtype.h"

namespace dflash {
namespace {

// f32, or bf16 on a device that works in it.
void check_gradient(const Context& context, const char* op, const Tensor& gradient, std::int64_t elements) {
    const bool reduced = gradient.dtype == DType::kBF16 && working_dtype(context.device()) == DType::kBF16;
    check_vector(context, op, "gradient", gradient, reduced ? DType::kBF16 : DType::kF32, elements);
}

}  // namespace

void adamw_step(const Context& context, const AdamWParams& p) {
    constexpr const char* kOp = "adamw_step";
    DFLASH_CHECK(p.tensors != nullptr && p.step >= 1, "{}: step {}", kOp, p.step);
    for (const AdamWTensor& t : *p.tensors) {
        const std::int64_t n = t.weight.elements();
        const bool split = t.remainder.defined();
        DFLASH_CHECK(!split || context.device().type == DeviceType::kCuda, "{}: split weights are for CUDA", kOp);
        check_vector(context, kOp, "weight", t.weight, split ? DType::kBF16 : DType::kF32, n);
        if (split) check_vector(context, kOp, "remainder", t.remainder, DType::kU16, n);
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
    return on_device(device, cpu::gradient_scale_workspace_bytes, cuda::gradient_scale_workspace_bytes)(device);
}

}  // namespace dflash
