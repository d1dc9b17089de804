// SPDX-License-Identifier: MIT
// Shape and dtype checks that every op makes before it touches memory. Failures are our own bugs: Error(kFailed), one line.
#pragma once

#include "kernels/context.h"
#include "tensor/tensor.h"

namespace dflash {

// Throws unless `tensor` is defined (or has no elements), lives on the context's device and holds rows x columns elements of `dtype`.
// The shape's rank is free: (rows, heads, D) passes as rows x (heads * D).
void check_rows(const Context& context, const char* op, const char* name, const Tensor& tensor, DType dtype, std::int64_t rows,
                std::int64_t columns);
// The same for a tensor read as one vector.
void check_vector(const Context& context, const char* op, const char* name, const Tensor& tensor, DType dtype, std::int64_t elements);
// A master weight as kernels/adamw.h defines it: f32, or on CUDA bf16 with its remainder.
void check_master(const Context& context, const char* op, const Tensor& weight, const Tensor& remainder, std::int64_t elements);
// The gradient of a trained tensor: f32, or bf16 on a device that works in it.
void check_gradient(const Context& context, const char* op, const Tensor& gradient, std::int64_t elements);

}  // namespace dflash
