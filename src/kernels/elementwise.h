// SPDX-License-Identifier: MIT
// Small ops over whole buffers: fill, copy with a dtype change, add, scaled sum, row-strided copy, argmax by row.
#pragma once

#include "kernels/context.h"
#include "tensor/tensor.h"

namespace dflash {

void fill_zero(const Context& context, const Tensor& y);
// y = x with conversion between f32, bf16 and f16.
void cast(const Context& context, const Tensor& x, const Tensor& y);
// y += x, f32 or on CUDA bf16.
void add(const Context& context, const Tensor& x, const Tensor& y);
// y = alpha x + beta y, f32 or on CUDA bf16; with beta 0 what y held is not read. y may be x.
void axpby(const Context& context, float alpha, const Tensor& x, float beta, const Tensor& y);
// y[row, column_begin : column_begin + columns(x)] = x[row, :], of one dtype; writes one tap into the concatenated features.
void copy_columns(const Context& context, const Tensor& x, const Tensor& y, std::int64_t column_begin);
// y[row] = index of the largest x[row, :] (the first of equals), i32 (rows). NaN rows give -1.
void argmax_rows(const Context& context, const Tensor& x, const Tensor& y);

}  // namespace dflash
