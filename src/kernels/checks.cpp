// SPDX-License-Identifier: MIT
#include "kernels/checks.h"

namespace dflash {

namespace {

void check_kind(const Context& context, const char* op, const char* name, const Tensor& tensor, DType dtype) {
    DFLASH_CHECK(tensor.defined() || tensor.elements() == 0, "{}: {} is missing", op, name);
    DFLASH_CHECK(tensor.dtype == dtype, "{}: {} is {}, expected {}", op, name, dtype_name(tensor.dtype), dtype_name(dtype));
    DFLASH_CHECK(tensor.device == context.device(), "{}: {} lives on another device than the context", op, name);
}

}  // namespace

void check_rows(const Context& context, const char* op, const char* name, const Tensor& tensor, DType dtype, std::int64_t rows,
                std::int64_t columns) {
    check_kind(context, op, name, tensor, dtype);
    DFLASH_CHECK(tensor.rows() == rows && (rows == 0 || tensor.row_elements() == columns), "{}: {} has shape {}, expected {} rows of {}",
                 op, name, tensor.shape.to_string(), rows, columns);
}

void check_vector(const Context& context, const char* op, const char* name, const Tensor& tensor, DType dtype, std::int64_t elements) {
    check_kind(context, op, name, tensor, dtype);
    DFLASH_CHECK(tensor.elements() == elements, "{}: {} has shape {}, expected {} elements", op, name, tensor.shape.to_string(), elements);
}

}  // namespace dflash
