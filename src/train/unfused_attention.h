// SPDX-License-Identifier: MIT
// Anchor attention from matrix products and a softmax over materialised scores, as one would write it without a fused kernel: the yardstick
// of `dflash bench attention`, and a second opinion on its results. Every score of every head is in memory at once.
#pragma once

#include <cstddef>

#include "kernels/anchor_attention.h"
#include "tensor/buffer.h"

namespace dflash {

class UnfusedAttention {
public:
    // Of the same inputs and outputs as the fused one. Memory of its own on the context's device.
    UnfusedAttention(const Context& context, const AnchorAttentionBackwardParams& params);
    void forward() const;   // writes params.out
    void backward() const;  // after a forward; writes the five gradients
    // Beside inputs and outputs.
    static std::size_t extra_bytes(const AnchorAttentionBackwardParams& params);

private:
    struct Ids {
        DeviceBuffer query, context, block;  // rows of the inputs in head-major order
    };
    void to_heads(const Tensor& rows, const Tensor& heads) const;
    void keys_to_heads(const Tensor& context_rows, const Tensor& block_rows, const Tensor& heads) const;
    void keys_from_heads(const Tensor& heads, const Tensor& context_rows, const Tensor& block_rows) const;
    Tensor of_head(const Tensor& tensor, std::int64_t head, std::int64_t rows) const { return tensor.slice_rows(head * rows, rows); }

    const Context& context_;
    AnchorAttentionBackwardParams p_;
    std::int64_t tokens_, context_rows_, keys_, heads_, kv_heads_, head_dim_;
    Ids ids_;
    DeviceBuffer q_, d_out_, out_, d_q_;           // (H * A*W, D)
    DeviceBuffer k_, v_, d_k_, d_v_;               // (G * (S + A*W), D)
    DeviceBuffer scores_, probability_, d_score_;  // (H * A*W, S + A*W), the last of one head
};

}  // namespace dflash
