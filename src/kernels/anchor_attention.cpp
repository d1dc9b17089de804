// SPDX-License-Identifier: MIT
#include "kernels/anchor_attention.h"

#include "kernels/backends.h"
#include "kernels/checks.h"
#include "kernels/cpu/vector_isa.h"
#include "kernels/cuda/attention_choice.h"
#include "kernels/stopwatch.h"
#include "tensor/cuda_runtime.h"

namespace dflash {

namespace {

// Checks the five inputs and the mask against q's shape (A * W, H, D) and the context's (S, G, D).
void check_inputs(const Context& context, const char* op, const Tensor& q, const Tensor& k_context, const Tensor& v_context,
                  const Tensor& k_block, const Tensor& v_block, const AnchorAttentionMask& mask) {
    DFLASH_CHECK(q.shape.rank() == 3 && k_context.shape.rank() == 3, "{}: q {} and k_context {}, expected (A*W, H, D) and (S, G, D)", op,
                 q.shape.to_string(), k_context.shape.to_string());
    const std::int64_t blocks = mask.begin_row.elements();
    const std::int64_t width = mask.block_size;
    const std::int64_t heads = q.shape[1], head_dim = q.shape[2];
    const std::int64_t context_rows = k_context.shape[0], kv_heads = k_context.shape[1];
    DFLASH_CHECK(width > 0 && mask.window >= 0, "{}: blocks of {}, window {}", op, width, mask.window);
    DFLASH_CHECK(kv_heads > 0 && heads % kv_heads == 0 && k_context.shape[2] == head_dim, "{}: q {} does not fit k_context {}", op,
                 q.shape.to_string(), k_context.shape.to_string());
    check_rows(context, op, "q", q, q.dtype, blocks * width, heads * head_dim);
    check_rows(context, op, "k_context", k_context, q.dtype, context_rows, kv_heads * head_dim);
    check_rows(context, op, "v_context", v_context, q.dtype, context_rows, kv_heads * head_dim);
    check_rows(context, op, "k_block", k_block, q.dtype, blocks * width, kv_heads * head_dim);
    check_rows(context, op, "v_block", v_block, q.dtype, blocks * width, kv_heads * head_dim);
    check_vector(context, op, "begin_row", mask.begin_row, DType::kI32, blocks);
    check_vector(context, op, "anchor_row", mask.anchor_row, DType::kI32, blocks);
    DFLASH_CHECK(mask.num_live >= 0 && mask.num_live <= blocks, "{}: {} live blocks of {}", op, mask.num_live, blocks);
    if (context.device().type != DeviceType::kCpu) return;
    for (std::int64_t b = 0; b < mask.num_live; ++b) {
        const std::int32_t begin = mask.begin_row.i32()[b];
        const std::int32_t anchor = mask.anchor_row.i32()[b];
        DFLASH_CHECK(begin >= 0 && begin <= anchor && anchor <= context_rows, "{}: block {} sees rows {}..{} of {}", op, b, begin, anchor,
                     context_rows);
    }
}

}  // namespace

void anchor_attention_forward(const Context& context, const AnchorAttentionForwardParams& p) {
    constexpr const char* kOp = "anchor_attention_forward";
    check_inputs(context, kOp, p.q, p.k_context, p.v_context, p.k_block, p.v_block, p.mask);
    check_rows(context, kOp, "out", p.out, p.q.dtype, p.q.rows(), p.q.row_elements());
    check_vector(context, kOp, "lse", p.lse, DType::kF32, p.q.rows() * p.q.shape[1]);
    const ProbedOp probed(context, kAnchorAttention);
    if (p.q.rows() > 0) on_device(context.device(), cpu::anchor_attention_forward, cuda::anchor_attention_forward)(context, p);
}

void anchor_attention_backward(const Context& context, const AnchorAttentionBackwardParams& p) {
    constexpr const char* kOp = "anchor_attention_backward";
    check_inputs(context, kOp, p.q, p.k_context, p.v_context, p.k_block, p.v_block, p.mask);
    for (const auto& [name, tensor] : {std::pair{"d_out", &p.d_out}, {"out", &p.out}, {"d_q", &p.d_q}}) {
        check_rows(context, kOp, name, *tensor, p.q.dtype, p.q.rows(), p.q.row_elements());
    }
    for (const auto& [name, tensor] : {std::pair{"lse", &p.lse}, {"delta", &p.delta}}) {
        check_vector(context, kOp, name, *tensor, DType::kF32, p.q.rows() * p.q.shape[1]);
    }
    for (const auto& [name, tensor] : {std::pair{"d_k_context", &p.d_k_context}, {"d_v_context", &p.d_v_context}}) {
        check_rows(context, kOp, name, *tensor, p.q.dtype, p.k_context.rows(), p.k_context.row_elements());
    }
    for (const auto& [name, tensor] : {std::pair{"d_k_block", &p.d_k_block}, {"d_v_block", &p.d_v_block}}) {
        check_rows(context, kOp, name, *tensor, p.q.dtype, p.k_block.rows(), p.k_block.row_elements());
    }
    const ProbedOp probed(context, kAnchorAttention);
    on_device(context.device(), cpu::anchor_attention_backward, cuda::anchor_attention_backward)(context, p);
}

std::string anchor_attention_kernel(Device device, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                                    std::int64_t block_size) {
    if (device.type == DeviceType::kCpu) return fmt::format("fused, vector code {}, f32", cpu::vector_isa());
    const cuda::DeviceProperties properties = cuda::device_properties(device);
    return cuda::choose_attention_kernel(10 * properties.compute_major + properties.compute_minor, heads, kv_heads, head_dim, block_size)
        .name;
}

}  // namespace dflash
