// SPDX-License-Identifier: MIT
#include "kernels/checks.h"

#include "tensor/working_dtype.h"

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

void check_master(const Context& context, const char* op, const Tensor& weight, const Tensor& remainder, std::int64_t elements) {
    const bool split = remainder.defined();
    DFLASH_CHECK(!split || context.device().type == DeviceType::kCuda, "{}: split weights are for CUDA", op);
    check_vector(context, op, "weight", weight, split ? DType::kBF16 : DType::kF32, elements);
    if (split) check_vector(context, op, "remainder", remainder, DType::kU16, elements);
}

void check_gradient(const Context& context, const char* op, const Tensor& gradient, std::int64_t elements) {
    const bool reduced = gradient.dtype == DType::kBF16 && working_dtype(context.device()) == DType::kBF16;
    check_vector(context, op, "gradient", gradient, reduced ? DType::kBF16 : DType::kF32, elements);
}

}  // namespace dflash
