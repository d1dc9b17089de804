// SPDX-License-Identifier: MIT
#include "kernels/log_sum_exp.h"

#include "kernels/backends.h"
#include "kernels/checks.h"

namespace dflash {

void log_sum_exp_rows(const Context& context, const Tensor& x, const Tensor& y) {
    const char* op = "log_sum_exp_rows";
    check_rows(context, op, "x", x, DType::kF32, x.rows(), x.row_elements());
    check_vector(context, op, "y", y, DType::kF32, x.rows());
    DFLASH_CHECK(x.rows() == 0 || x.row_elements() > 0, "{}: rows of nothing", op);
    if (x.rows() > 0) on_device(context.device(), cpu::log_sum_exp_rows, cuda::log_sum_exp_rows)(context, x, y);
}

}  // namespace dflash
