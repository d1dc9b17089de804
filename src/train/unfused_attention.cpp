// SPDX-License-Identifier: MIT
#include "train/unfused_attention.h"

#include <span>
#include <vector>

#include "kernels/embedding.h"
#include "kernels/linear.h"
#include "kernels/masked_softmax.h"
#include "tensor/working_dtype.h"

namespace dflash {
namespace {

// Rows (row, head) of a tensor (rows, heads, D), head by head.
DeviceBuffer head_major_ids(const Context& context, std::int64_t rows, std::int64_t heads) {
    std::vector<std::int32_t> ids;
    for (std::int64_t head = 0; head < heads; ++head) {
        for (std::int64_t row = 0; row < rows; ++row) ids.push_back(static_cast<std::int32_t>(row * heads + head));
    }
    DeviceBuffer buffer(context.device(), DType::kI32, {rows * heads});
    context.upload(std::span<const std::int32_t>(ids), buffer.tensor());
    return buffer;
}

DeviceBuffer make(const Context& context, DType dtype, std::int64_t rows, std::int64_t columns) {
    return {context.device(), dtype, {rows, columns}};
}

Tensor head_rows(const Tensor& tensor, std::int64_t head_dim) { return tensor.view({tensor.elements() / head_dim, head_dim}); }

}  // namespace

std::size_t UnfusedAttention::extra_bytes(const AnchorAttentionBackwardParams& p) {
    const auto tokens = static_cast<std::size_t>(p.q.shape[0]), keys = tokens + static_cast<std::size_t>(p.k_context.shape[0]);
    const auto heads = static_cast<std::size_t>(p.q.shape[1]), kv_heads = static_cast<std::size_t>(p.k_context.shape[1]);
    const auto head_dim = static_cast<std::size_t>(p.q.shape[2]), word = dtype_bytes(p.q.dtype);
    return 4 * (heads * tokens + kv_heads * keys) * head_dim * word + heads * tokens * keys * (sizeof(float) + word) + tokens * keys * word;
}

UnfusedAttention::UnfusedAttention(const Context& context, const AnchorAttentionBackwardParams& params)
    : context_(context),
      p_(params),
      tokens_(params.q.shape[0]),
      context_rows_(params.k_context.shape[0]),
      keys_(tokens_ + context_rows_),
      heads_(params.q.shape[1]),
      kv_heads_(params.k_context.shape[1]),
      head_dim_(params.q.shape[2]),
      ids_{head_major_ids(context, tokens_, heads_), head_major_ids(context, context_rows_, kv_heads_),
           head_major_ids(context, tokens_, kv_heads_)} {
    const DType dtype = working_dtype(context.device());
    for (DeviceBuffer* buffer : {&q_, &d_out_, &out_, &d_q_}) *buffer = make(context, dtype, heads_ * tokens_, head_dim_);
    for (DeviceBuffer* buffer : {&k_, &v_, &d_k_, &d_v_}) *buffer = make(context, dtype, kv_heads_ * keys_, head_dim_);
    scores_ = make(context, DType::kF32, heads_ * tokens_, keys_);
    probability_ = make(context, dtype, heads_ * tokens_, keys_);
    d_score_ = make(context, dtype, tokens_, keys_);
}

void UnfusedAttention::to_heads(const Tensor& rows, const Tensor& heads) const {
    gather_rows(context_, {head_rows(rows, head_dim_), ids_.query, heads});
}

// Of each kv head: its context rows, then its block rows.
void UnfusedAttention::keys_to_heads(const Tensor& context_rows, const Tensor& block_rows, const Tensor& heads) const {
    for (std::int64_t g = 0; g < kv_heads_; ++g) {
        const Tensor head = of_head(heads, g, keys_);
        gather_rows(context_,
                    {head_rows(context_rows, head_dim_), of_head(ids_.context, g, context_rows_), head.slice_rows(0, context_rows_)});
        gather_rows(context_, {head_rows(block_rows, head_dim_), of_head(ids_.block, g, tokens_), head.slice_rows(context_rows_, tokens_)});
    }
}

void UnfusedAttention::keys_from_heads(const Tensor& heads, const Tensor& context_rows, const Tensor& block_rows) const {
    for (std::int64_t g = 0; g < kv_heads_; ++g) {
        const Tensor head = of_head(heads, g, keys_);
        scatter_rows(context_,
                     {head.slice_rows(0, context_rows_), of_head(ids_.context, g, context_rows_), {}, head_rows(context_rows, head_dim_)});
        scatter_rows(context_,
                     {head.slice_rows(context_rows_, tokens_), of_head(ids_.block, g, tokens_), {}, head_rows(block_rows, head_dim_)});
    }
}

void UnfusedAttention::forward() const {
    to_heads(p_.q, q_);
    keys_to_heads(p_.k_context, p_.k_block, k_);
    keys_to_heads(p_.v_context, p_.v_block, v_);
    for (std::int64_t h = 0; h < heads_; ++h) {
        const std::int64_t g = h / (heads_ / kv_heads_);
        const Tensor scores = of_head(scores_, h, tokens_), probability = of_head(probability_, h, tokens_);
        linear_forward(context_, {.x = of_head(q_, h, tokens_), .weight = of_head(k_, g, keys_), .y = scores});
        masked_softmax_forward(context_, {scores, p_.mask, p_.scale, probability});
        linear_backward_input(context_, {.d_y = probability, .weight = of_head(v_, g, keys_), .d_x = of_head(out_, h, tokens_)});
    }
    scatter_rows(context_, {out_, ids_.query, {}, head_rows(p_.out, head_dim_)});
}

void UnfusedAttention::backward() const {
    to_heads(p_.d_out, d_out_);
    const std::int64_t group = heads_ / kv_heads_;
    for (std::int64_t h = 0; h < heads_; ++h) {
        const std::int64_t g = h / group;
        const Write write = h % group == 0 ? Write::kOverwrite : Write::kAccumulate;
        const Tensor d_out = of_head(d_out_, h, tokens_), d_p = of_head(scores_, h, tokens_);
        const Tensor probability = of_head(probability_, h, tokens_);
        linear_backward_weight(context_, {.d_y = probability, .x = d_out, .d_weight = of_head(d_v_, g, keys_), .write = write});
        linear_forward(context_, {.x = d_out, .weight = of_head(v_, g, keys_), .y = d_p});
        masked_softmax_backward(context_, {probability, d_p, p_.scale, d_score_});
        linear_backward_input(context_, {.d_y = d_score_, .weight = of_head(k_, g, keys_), .d_x = of_head(d_q_, h, tokens_)});
        linear_backward_weight(context_,
                               {.d_y = d_score_, .x = of_head(q_, h, tokens_), .d_weight = of_head(d_k_, g, keys_), .write = write});
    }
    scatter_rows(context_, {d_q_, ids_.query, {}, head_rows(p_.d_q, head_dim_)});
    keys_from_heads(d_k_, p_.d_k_context, p_.d_k_block);
    keys_from_heads(d_v_, p_.d_v_context, p_.d_v_block);
}

}  // namespace dflash
