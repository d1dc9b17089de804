// SPDX-License-Identifier: MIT
#include "kernels/causal_attention.h"

#include "kernels/backends.h"
#include "kernels/checks.h"
#include "tensor/working_dtype.h"

namespace dflash {

void causal_attention_forward(const Context& context, const CausalAttentionParams& p) {
    const char* op = "causal_attention";
    const Shape& q = p.q.shape;
    const Shape& k = p.k.shape;
    DFLASH_CHECK(q.rank() == 3 && k.rank() == 3 && k[2] == q[2] && k[1] > 0 && q[1] % k[1] == 0, "{}: q is {}, k is {}", op, q.to_string(),
                 k.to_string());
    const DType working = working_dtype(context.device());
    check_rows(context, op, "q", p.q, working, q[0], q[1] * q[2]);
    check_rows(context, op, "k", p.k, working, k[0], k[1] * k[2]);
    check_rows(context, op, "v", p.v, working, k[0], k[1] * k[2]);
    check_rows(context, op, "out", p.out, working, q[0], q[1] * q[2]);
    check_vector(context, op, "key_begin", p.key_begin, DType::kI32, q[0]);
    check_vector(context, op, "key_end", p.key_end, DType::kI32, q[0]);
    if (q[0] > 0) on_device(context.device(), cpu::causal_attention_forward, cuda::causal_attention_forward)(context, p);
}

std::size_t causal_attention_workspace_bytes(Device device, std::int64_t rows, std::int64_t key_rows, std::int64_t heads,
                                             std::int64_t head_dim) {
    return on_device(device, cpu::causal_attention_workspace_bytes, cuda::causal_attention_workspace_bytes)(rows, key_rows, heads,
                                                                                                            head_dim);
}

}  // namespace dflash
