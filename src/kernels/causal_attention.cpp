// SPDX-License-Identifier: MIT
#include "kernels/causal_attention.h"

#include "kernels/backends.h"
#include "kernels/checks.h"

namespace dflash {

void causal_attention_forward(const Context& context, const CausalAttentionParams& p) {
    const char* op = "causal_attention";
    const Shape& q = p.q.shape;
    const Shape& k = p.k.shape;
    DFLASH_CHECK(q.rank() == 3 && k.rank() == 3 && k[2] == q[2] && k[1] > 0 && q[1] % k[1] == 0, "{}: q is {}, k is {}", op, q.to_string(),
                 k.to_string());
    check_rows(context, op, "q", p.q, DType::kF32, q[0], q[1] * q[2]);
    check_rows(context, op, "k", p.k, DType::kF32, k[0], k[1] * k[2]);
    check_rows(context, op, "v", p.v, DType::kF32, k[0], k[1] * k[2]);
    check_rows(context, op, "out", p.out, DType::kF32, q[0], q[1] * q[2]);
    check_vector(context, op, "key_begin", p.key_begin, DType::kI32, q[0]);
    check_vector(context, op, "key_end", p.key_end, DType::kI32, q[0]);
    if (q[0] > 0) on_device(context.device(), cpu::causal_attention_forward, cuda::causal_attention_forward)(context, p);
}

}  // namespace dflash
