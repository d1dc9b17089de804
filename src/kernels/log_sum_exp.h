// SPDX-License-Identifier: MIT
// y[row] = log sum_i e^(x[row, i]), summed in double: rows are whole vocabularies.
#pragma once

#include "kernels/context.h"
#include "tensor/tensor.h"

namespace dflash {

// x f32 (rows, V), V > 0; y f32 (rows), =. A NaN in a row gives NaN.
void log_sum_exp_rows(const Context& context, const Tensor& x, const Tensor& y);

}  // namespace dflash
