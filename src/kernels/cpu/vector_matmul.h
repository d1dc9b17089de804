// SPDX-License-Identifier: MIT
// Matrix product for processors on which oneDNN's rows are not kept apart: C (m, n) = or += A (m, k) B (k, n) in f32.
// Every element of C is one chain of fused multiply-adds in the order of k: its bits depend neither on the rows beside it nor on the
// number of threads. Takes no memory but 64 KiB of each thread's stack.
#pragma once

#include <cstdint>

namespace dflash::cpu {

// Where element (i, j) lies: data + i * row_stride + j * column_stride, strides in elements.
struct MatrixView {
    const float* data;
    std::int64_t row_stride, column_stride;
};

// C is row-major and contiguous.
void vector_matmul(std::int64_t m, std::int64_t n, std::int64_t k, const MatrixView& a, const MatrixView& b, float* c, bool accumulate);

}  // namespace dflash::cpu
