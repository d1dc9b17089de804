// SPDX-License-Identifier: MIT
// Rows by index: y[i] = table[ids[i]]. Also moves selected rows together before a product and back after it.
#pragma once

#include "kernels/context.h"
#include "kernels/linear.h"
#include "tensor/tensor.h"

namespace dflash {

struct GatherRowsParams {
    Tensor table;  // f32 (V, C)
    Tensor ids;    // i32 (n), each in [0, V): checked, Error(kFailed) names the first bad one
    Tensor y;      // f32 (n, C), =
};
void gather_rows(const Context& context, const GatherRowsParams& params);

struct ScatterRowsParams {
    Tensor x;      // f32 (n, C)
    Tensor ids;    // i32 (n), distinct
    Tensor scale;  // optional f32 (n): row i is multiplied by scale[i]
    Tensor y;      // f32 (V, C): y[ids[i]] = scale[i] * x[i]; other rows are left alone
};
void scatter_rows(const Context& context, const ScatterRowsParams& params);

}  // namespace dflash
