// SPDX-License-Identifier: MIT
#include "kernels/swiglu.h"

#include "kernels/backends.h"
#include "kernels/checks.h"

namespace dflash {

void swiglu_forward(const Context& context, const SwigluForwardParams& p) {
    constexpr const char* kOp = "swiglu_forward";
    for (const auto& [name, tensor] : {std::pair{"gate", &p.gate}, {"up", &p.up}, {"y", &p.y}}) {
        check_rows(context, kOp, name, *tensor, p.gate.dtype, p.gate.rows(), p.gate.row_elements());
    }
    if (p.gate.elements() > 0) on_device(context.device(), cpu::swiglu_forward, cuda::swiglu_forward)(context, p);
}

void swiglu_backward(const Context& context, const SwigluBackwardParams& p) {
    constexpr const char* kOp = "swiglu_backward";
    for (const auto& [name, tensor] :
         {std::pair{"gate", &p.gate}, {"up", &p.up}, {"d_y", &p.d_y}, {"d_gate", &p.d_gate}, {"d_up", &p.d_up}}) {
        check_rows(context, kOp, name, *tensor, p.gate.dtype, p.gate.rows(), p.gate.row_elements());
    }
    if (p.y.defined()) check_rows(context, kOp, "y", p.y, p.gate.dtype, p.gate.rows(), p.gate.row_elements());
    if (p.gate.elements() > 0) on_device(context.device(), cpu::swiglu_backward, cuda::swiglu_backward)(context, p);
}

void sigmoid_gate_forward(const Context& context, const SigmoidGateParams& p) {
    constexpr const char* kOp = "sigmoid_gate_forward";
    DFLASH_CHECK(p.y.shape.rank() == 3, "{}: y has shape {}, expected (rows, heads, D)", kOp, p.y.shape.to_string());
    check_vector(context, kOp, "y", p.y, p.y.dtype, p.y.elements());
    DFLASH_CHECK(p.gate.defined() || p.y.rows() == 0, "{}: gate is missing", kOp);
    DFLASH_CHECK(p.gate.dtype == p.y.dtype, "{}: gate is {}, y is {}", kOp, dtype_name(p.gate.dtype), dtype_name(p.y.dtype));
    if (p.y.elements() > 0) on_device(context.device(), cpu::sigmoid_gate_forward, cuda::sigmoid_gate_forward)(context, p);
}

}  // namespace dflash
