// SPDX-License-Identifier: MIT
#include "kernels/cross_entropy.h"

#include "kernels/backends.h"
#include "kernels/checks.h"

namespace dflash {

void cross_entropy_forward_backward(const Context& context, const CrossEntropyParams& p) {
    constexpr const char* kOp = "cross_entropy";
    const std::int64_t rows = p.logits.rows();
    const std::int64_t vocabulary = p.logits.row_elements();
    check_rows(context, kOp, "logits", p.logits, p.logits.dtype, rows, vocabulary);
    if (p.teacher_logits.defined()) check_rows(context, kOp, "teacher_logits", p.teacher_logits, p.logits.dtype, rows, vocabulary);
    check_vector(context, kOp, "labels", p.labels, DType::kI32, rows);
    check_vector(context, kOp, "loss", p.loss, DType::kF32, rows);
    check_vector(context, kOp, "label_prob", p.label_prob, DType::kF32, rows);
    check_vector(context, kOp, "correct", p.correct, DType::kI32, rows);
    if (context.device().type == DeviceType::kCpu) {
        for (std::int64_t r = 0; r < rows; ++r) {
            const std::int32_t label = p.labels.i32()[r];
            DFLASH_CHECK(label >= 0 && label < vocabulary, "{}: label {} of row {}, vocabulary {}", kOp, label, r, vocabulary);
        }
    }
    if (rows > 0) on_device(context.device(), cpu::cross_entropy_forward_backward, cuda::cross_entropy_forward_backward)(context, p);
}

}  // namespace dflash
