// SPDX-License-Identifier: MIT
#include "kernels/loss_sums.h"

#include "kernels/backends.h"
#include "kernels/checks.h"

namespace dflash {

void dpace_weights(const Context& context, const DpaceWeightsParams& p) {
    constexpr const char* kOp = "dpace_weights";
    const std::int64_t n = p.rows.elements();
    DFLASH_CHECK(p.block_size >= 1 && p.block_size <= kMaxBlockSize, "{}: blocks of {}", kOp, p.block_size);
    check_vector(context, kOp, "rows", p.rows, DType::kI32, n);
    check_vector(context, kOp, "label_prob", p.label_prob, DType::kF32, n);
    check_vector(context, kOp, "weight", p.weight, DType::kF32, n);
    if (n > 0) on_device(context.device(), cpu::dpace_weights, cuda::dpace_weights)(context, p);
}

void loss_sums(const Context& context, const LossSumsParams& p) {
    constexpr const char* kOp = "loss_sums";
    const std::int64_t n = p.rows.elements();
    DFLASH_CHECK(p.block_size >= 1 && p.block_size <= kMaxBlockSize, "{}: blocks of {}", kOp, p.block_size);
    check_vector(context, kOp, "rows", p.rows, DType::kI32, n);
    check_vector(context, kOp, "loss", p.loss, DType::kF32, n);
    check_vector(context, kOp, "weight", p.weight, DType::kF32, n);
    check_vector(context, kOp, "correct", p.correct, DType::kI32, n);
    check_vector(context, kOp, "sums", p.sums, DType::kF64, loss_sums_size(p.block_size));
    if (n > 0) on_device(context.device(), cpu::loss_sums, cuda::loss_sums)(context, p);
}

}  // namespace dflash
