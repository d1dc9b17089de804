// SPDX-License-Identifier: MIT
// One anchor attention of a given shape on random values, to be timed: for `dflash bench attention` and `dflash tune`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/anchor_attention.h"
#include "tensor/buffer.h"

namespace dflash {

struct AttentionShape {
    std::string name;
    std::int64_t context = 8192, anchors = 512, documents = 1;  // documents of equal length
    std::int64_t window = 0;                                    // 0 = full
    bool causal_block = false;
    std::uint32_t seed = 0;  // of the anchors: sorted, uniform without replacement
    std::int64_t heads = 32, kv_heads = 8, head_dim = 128, block_size = 16;
};
// The six cases that the attention kernels are judged by.
const std::vector<AttentionShape>& attention_table();

struct AttentionAnchors {
    std::vector<std::int32_t> begin, anchor;
    double pairs = 0;  // unmasked query-key pairs of one head
};
AttentionAnchors draw_attention_anchors(const AttentionShape& shape);

class AttentionWorkload {
public:
    // Memory of its own on the context's device. Error(kBadInput) for a shape that no kernel takes.
    AttentionWorkload(const Context& context, const AttentionShape& shape);
    // What a step does to make the mask: two integers a block go to the device (the constructor has done it once).
    void prepare_mask() const;
    void forward() const;
    void backward() const;  // after a forward
    const AttentionAnchors& anchors() const { return anchors_; }
    // Beside inputs and outputs: log-sum-exp and row sums.
    std::size_t extra_bytes() const { return lse_.tensor().bytes() + delta_.tensor().bytes(); }
    const Tensor& out() const { return out_; }
    // Every input and output.
    AnchorAttentionBackwardParams tensors() const;
    // 4 D a pair and head forward, 10 D backward (five products, whatever the kernels compute again).
    double forward_flop() const;
    double backward_flop() const { return forward_flop() * 10 / 4; }

private:
    const Context& context_;
    AttentionShape shape_;
    AttentionAnchors anchors_;
    DeviceBuffer q_, k_context_, v_context_, k_block_, v_block_, d_out_;
    DeviceBuffer out_, lse_, delta_, d_q_, d_k_context_, d_v_context_, d_k_block_, d_v_block_;
    DeviceBuffer begin_, anchor_;
    AnchorAttentionMask mask_;
    float scale_;
};

// Median milliseconds of `runs` runs after a few that are not counted. On a GPU it rests before, so that nothing is timed in the heat of
// something else.
double median_ms_of(const Context& context, const std::function<void()>& work, int runs);

}  // namespace dflash
