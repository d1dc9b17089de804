// SPDX-License-Identifier: MIT
#include "kernels/elementwise.h"

#include "kernels/backends.h"
#include "kernels/checks.h"

namespace dflash {

void fill_zero(const Context& context, const Tensor& y) {
    check_vector(context, "fill_zero", "y", y, y.dtype, y.elements());
    if (y.elements() > 0) on_device(context.device(), cpu::fill_zero, cuda::fill_zero)(context, y);
}

void cast(const Context& context, const Tensor& x, const Tensor& y) {
    check_vector(context, "cast", "x", x, x.dtype, x.elements());
    check_vector(context, "cast", "y", y, y.dtype, x.elements());
    for (const DType dtype : {x.dtype, y.dtype}) {
        DFLASH_CHECK(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16, "cast: {} to {}", dtype_name(x.dtype),
                     dtype_name(y.dtype));
    }
    if (x.elements() > 0) on_device(context.device(), cpu::cast, cuda::cast)(context, x, y);
}

void add(const Context& context, const Tensor& x, const Tensor& y) {
    check_vector(context, "add", "x", x, x.dtype, x.elements());
    check_vector(context, "add", "y", y, x.dtype, x.elements());
    if (x.elements() > 0) on_device(context.device(), cpu::add, cuda::add)(context, x, y);
}

void axpby(const Context& context, float alpha, const Tensor& x, float beta, const Tensor& y) {
    check_vector(context, "axpby", "x", x, x.dtype, x.elements());
    check_vector(context, "axpby", "y", y, x.dtype, x.elements());
    if (x.elements() > 0) on_device(context.device(), cpu::axpby, cuda::axpby)(context, alpha, x, beta, y);
}

void copy_columns(const Context& context, const Tensor& x, const Tensor& y, std::int64_t column_begin) {
    check_rows(context, "copy_columns", "x", x, x.dtype, x.rows(), x.row_elements());
    check_rows(context, "copy_columns", "y", y, x.dtype, x.rows(), y.row_elements());
    DFLASH_CHECK(column_begin >= 0 && column_begin + x.row_elements() <= y.row_elements(), "copy_columns: columns {}..{} of {}",
                 column_begin, column_begin + x.row_elements(), y.row_elements());
    if (x.elements() > 0) on_device(context.device(), cpu::copy_columns, cuda::copy_columns)(context, x, y, column_begin);
}

void argmax_rows(const Context& context, const Tensor& x, const Tensor& y) {
    check_rows(context, "argmax_rows", "x", x, x.dtype, x.rows(), x.row_elements());
    check_vector(context, "argmax_rows", "y", y, DType::kI32, x.rows());
    if (x.rows() > 0) on_device(context.device(), cpu::argmax_rows, cuda::argmax_rows)(context, x, y);
}

}  // namespace dflash
