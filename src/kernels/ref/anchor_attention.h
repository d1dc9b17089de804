// SPDX-License-Identifier: MIT
// Anchor attention and its gradient as plain loops over one dense row of scores: the oracle, and the version to read first.
// Template on float or double. The rule of visibility stands in kernels/anchor_attention.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace dflash::ref {

struct AnchorAttentionShape {
    std::int64_t blocks = 0, live = 0, width = 0, context = 0;  // A, live ones, W, S
    std::int64_t heads = 0, kv_heads = 0, head_dim = 0;         // H, G, D
    std::int64_t window = 0;
    bool causal_block = false;
    std::vector<std::int32_t> begin, anchor;  // (A)

    // Keys are numbered: the context's rows 0 .. S-1, then the block's own slots S .. S+W-1.
    bool visible(std::int64_t block, std::int64_t slot, std::int64_t key) const {
        if (block >= live) return false;
        if (key >= context) return !causal_block || key - context <= slot;
        const std::int64_t b = begin[static_cast<std::size_t>(block)];
        const std::int64_t p = anchor[static_cast<std::size_t>(block)];
        return key >= b && key < p && (window == 0 || key >= p + slot - (window - 1));
    }
};

template <typename T>
struct AnchorAttentionInputs {
    std::vector<T> q, k_context, v_context, k_block, v_block;

    // Row of key (or value) `key` as `block` numbers it.
    static T* row(const AnchorAttentionShape& s, std::vector<T>& context, std::vector<T>& block_rows, std::int64_t block, std::int64_t key,
                  std::int64_t kv_head) {
        if (key < s.context) return context.data() + (key * s.kv_heads + kv_head) * s.head_dim;
        return block_rows.data() + ((block * s.width + key - s.context) * s.kv_heads + kv_head) * s.head_dim;
    }
};

// Softmax weights of one query over all S + W keys (zero where not visible), and the log-sum-exp (zero when nothing is visible).
template <typename T>
T anchor_attention_weights(const AnchorAttentionShape& s, AnchorAttentionInputs<T>& in, T scale, std::int64_t block, std::int64_t slot,
                           std::int64_t head, std::vector<T>& weights) {
    const std::int64_t kv_head = head / (s.heads / s.kv_heads);
    const T* q = in.q.data() + ((block * s.width + slot) * s.heads + head) * s.head_dim;
    weights.assign(static_cast<std::size_t>(s.context + s.width), T{0});
    T max = -INFINITY;
    for (std::int64_t key = 0; key < s.context + s.width; ++key) {
        if (!s.visible(block, slot, key)) continue;
        const T* k = AnchorAttentionInputs<T>::row(s, in.k_context, in.k_block, block, key, kv_head);
        T score = 0;
        for (std::int64_t d = 0; d < s.head_dim; ++d) score += q[d] * k[d];
        weights[static_cast<std::size_t>(key)] = score * scale;
        max = std::max(max, score * scale);
    }
    if (max == -INFINITY) return T{0};
    T sum = 0;
    for (std::int64_t key = 0; key < s.context + s.width; ++key) {
        if (!s.visible(block, slot, key)) continue;
        T& w = weights[static_cast<std::size_t>(key)];
        w = std::exp(w - max);
        sum += w;
    }
    for (T& w : weights) w /= sum;
    return max + std::log(sum);
}

template <typename T>
void anchor_attention_forward(const AnchorAttentionShape& s, AnchorAttentionInputs<T>& in, T scale, std::vector<T>& out,
                              std::vector<T>& lse) {
    out.assign(in.q.size(), T{0});
    lse.assign(static_cast<std::size_t>(s.blocks * s.width * s.heads), T{0});
    std::vector<T> weights;
    for (std::int64_t row = 0; row < s.blocks * s.width; ++row) {
        for (std::int64_t head = 0; head < s.heads; ++head) {
            const std::int64_t block = row / s.width;
            lse[static_cast<std::size_t>(row * s.heads + head)] =
                anchor_attention_weights(s, in, scale, block, row % s.width, head, weights);
            T* o = out.data() + (row * s.heads + head) * s.head_dim;
            for (std::int64_t key = 0; key < s.context + s.width; ++key) {
                if (!s.visible(block, row % s.width, key)) continue;
                const T* v = AnchorAttentionInputs<T>::row(s, in.v_context, in.v_block, block, key, head / (s.heads / s.kv_heads));
                for (std::int64_t d = 0; d < s.head_dim; ++d) o[d] += weights[static_cast<std::size_t>(key)] * v[d];
            }
        }
    }
}

// With P the weights: dV += P dO, dP = dO V, dS = P (dP - sum P dP), dQ += dS K scale, dK += dS Q scale.
template <typename T>
void anchor_attention_backward(const AnchorAttentionShape& s, AnchorAttentionInputs<T>& in, T scale, const std::vector<T>& d_out,
                               AnchorAttentionInputs<T>& d_in) {
    d_in.q.assign(in.q.size(), T{0});
    d_in.k_context.assign(in.k_context.size(), T{0});
    d_in.v_context.assign(in.v_context.size(), T{0});
    d_in.k_block.assign(in.k_block.size(), T{0});
    d_in.v_block.assign(in.v_block.size(), T{0});
    std::vector<T> weights, d_weights;
    for (std::int64_t row = 0; row < s.blocks * s.width; ++row) {
        for (std::int64_t head = 0; head < s.heads; ++head) {
            const std::int64_t block = row / s.width;
            const std::int64_t kv_head = head / (s.heads / s.kv_heads);
            anchor_attention_weights(s, in, scale, block, row % s.width, head, weights);
            const T* q = in.q.data() + (row * s.heads + head) * s.head_dim;
            const T* d_o = d_out.data() + (row * s.heads + head) * s.head_dim;
            T* d_q = d_in.q.data() + (row * s.heads + head) * s.head_dim;
            d_weights.assign(weights.size(), T{0});
            T mean = 0;
            for (std::int64_t key = 0; key < s.context + s.width; ++key) {
                if (!s.visible(block, row % s.width, key)) continue;
                const T w = weights[static_cast<std::size_t>(key)];
                const T* v = AnchorAttentionInputs<T>::row(s, in.v_context, in.v_block, block, key, kv_head);
                T* d_v = AnchorAttentionInputs<T>::row(s, d_in.v_context, d_in.v_block, block, key, kv_head);
                for (std::int64_t d = 0; d < s.head_dim; ++d) {
                    d_weights[static_cast<std::size_t>(key)] += d_o[d] * v[d];
                    d_v[d] += w * d_o[d];
                }
                mean += w * d_weights[static_cast<std::size_t>(key)];
            }
            for (std::int64_t key = 0; key < s.context + s.width; ++key) {
                if (!s.visible(block, row % s.width, key)) continue;
                const T d_score = weights[static_cast<std::size_t>(key)] * (d_weights[static_cast<std::size_t>(key)] - mean) * scale;
                const T* k = AnchorAttentionInputs<T>::row(s, in.k_context, in.k_block, block, key, kv_head);
                T* d_k = AnchorAttentionInputs<T>::row(s, d_in.k_context, d_in.k_block, block, key, kv_head);
                for (std::int64_t d = 0; d < s.head_dim; ++d) {
                    d_q[d] += d_score * k[d];
                    d_k[d] += d_score * q[d];
                }
            }
        }
    }
}

}  // namespace dflash::ref
