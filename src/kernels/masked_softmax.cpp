// SPDX-License-Identifier: MIT
#include "kernels/masked_softmax.h"

#include "kernels/backends.h"
#include "kernels/checks.h"
#include "tensor/working_dtype.h"

namespace dflash {

void masked_softmax_forward(const Context& context, const MaskedSoftmaxParams& p) {
    const char* op = "masked_softmax_forward";
    const std::int64_t blocks = p.mask.begin_row.elements(), rows = p.scores.rows(), columns = p.scores.row_elements();
    check_rows(context, op, "scores", p.scores, DType::kF32, blocks * p.mask.block_size, columns);
    check_rows(context, op, "p", p.p, working_dtype(context.device()), rows, columns);
    check_vector(context, op, "begin_row", p.mask.begin_row, DType::kI32, blocks);
    check_vector(context, op, "anchor_row", p.mask.anchor_row, DType::kI32, blocks);
    DFLASH_CHECK(columns >= rows, "{}: {} columns, fewer than the {} block keys", op, columns, rows);
    if (rows > 0) on_device(context.device(), cpu::masked_softmax_forward, cuda::masked_softmax_forward)(context, p);
}

void masked_softmax_backward(const Context& context, const MaskedSoftmaxBackwardParams& p) {
    const char* op = "masked_softmax_backward";
    const DType dtype = working_dtype(context.device());
    check_rows(context, op, "p", p.p, dtype, p.d_p.rows(), p.d_p.row_elements());
    check_rows(context, op, "d_p", p.d_p, DType::kF32, p.d_p.rows(), p.d_p.row_elements());
    check_rows(context, op, "d_scores", p.d_scores, dtype, p.d_p.rows(), p.d_p.row_elements());
    if (p.d_p.rows() > 0) on_device(context.device(), cpu::masked_softmax_backward, cuda::masked_softmax_backward)(context, p);
}

}  // namespace dflash
