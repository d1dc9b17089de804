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
        check_vector(context, kOp, "weight", t.weight, t.weight.dtype, n);
        check_vector(context, kOp, "gradient", t.gradient, t.gradient.dtype, n);
        check_vector(context, kOp, "m", t.m, DType::kF32, n);
        check_vector(context, kOp, "v", t.v, DType::kF32, n);
    }
    on_device(context.device(), cpu::adamw_step, cuda::adamw_step)(context, p);
}

double sum_of_squares(const Context& context, const std::vector<Tensor>& tensors) {
    for (const Tensor& t : tensors) check_vector(context, "sum_of_squares", "tensor", t, t.dtype, t.elements());
    return on_device(context.device(), cpu::sum_of_squares, cuda::sum_of_squares)(context, tensors);
}

}  // namespace dflash
