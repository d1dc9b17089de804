// SPDX-License-Identifier: MIT
// Anchor attention on the CPU: online softmax over key tiles (Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018;
// Dao et al., "FlashAttention", 2022). Scores are kept key-major (keys x rows), so that a row is a vector lane: maxima, sums and masks need
// no work across lanes, and neither keys nor values are copied or transposed. Only the queries are, once a group.
// Backward: dK and dV of a context row are written by one task alone, blocks in order: no atomics, one order of sums.
#include "kernels/cpu/anchor_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/backends.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/anchor_attention.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/cpu/small_matmul-inl.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dflash::cpu::HWY_NAMESPACE {

// Rows are padded to a multiple of 16 lanes; padded rows are zero and reach no output.
std::int64_t padded(std::int64_t rows) { return (rows + 15) / 16 * 16; }

// x_t (D, padded rows) = factor x, of the group's rows of x (A*W, H, D).
void pack_transposed(const RowGroup& rows, const float* x, float factor, float* x_t) {
    const std::int64_t head_dim = rows.g.head_dim;
    const std::int64_t stride = padded(rows.count);
    for (std::int64_t i = 0; i < stride; ++i) {
        const float* from = i < rows.count ? x + rows.index(i) * head_dim : nullptr;
        for (std::int64_t d = 0; d < head_dim; ++d) x_t[d * stride + i] = from == nullptr ? 0.0F : factor * from[d];
    }
}

// x_rows (rows, D) = factor x
void pack_rows(const RowGroup& rows, const float* x, float factor, float* x_rows) {
    const std::int64_t head_dim = rows.g.head_dim;
    for (std::int64_t i = 0; i < rows.count; ++i) {
        for (std::int64_t d = 0; d < head_dim; ++d) x_rows[i * head_dim + d] = factor * x[rows.index(i) * head_dim + d];
    }
}

// A tile's rows (keys, D) side by side. In their tensor they stand a power of two apart and evict one another from the first-level cache,
// which matters to products that read them several times.
void gather_tile(const RowGroup& rows, const KeyTile& tile, const float* x, float* x_tile) {
    for (std::int64_t key = 0; key < tile.count; ++key) {
        const float* from = x + key * rows.g.kv_stride;
        float* to = x_tile + key * rows.g.head_dim;
        for_each_vector(rows.g.head_dim, [&](auto at) { at.store(at.load(from), to); });
    }
}

// scores (keys, padded rows) = keys (keys, D) x_t (D, padded rows)
void tile_product(const RowGroup& rows, const KeyTile& tile, const float* keys, std::int64_t key_stride, const float* x_t, float* scores) {
    const std::int64_t stride = padded(rows.count);
    std::memset(scores, 0, static_cast<std::size_t>(tile.count * stride) * sizeof(float));
    add_matmul(tile.count, stride, {rows.g.head_dim, keys, key_stride, x_t, stride, scores, stride});
}

void hide_unseen(const RowGroup& rows, const KeyTile& tile, float* scores) {
    if (!tile.masked) return;
    const std::int64_t stride = padded(rows.count);
    for (std::int64_t key = 0; key < tile.count; ++key) {
        for (std::int64_t i = 0; i < rows.count; ++i) {
            if (!tile.visible(rows, i, key)) scores[key * stride + i] = -std::numeric_limits<float>::infinity();
        }
    }
}

// Scores become e^(score - max); max and sum (padded rows) move on; `rescale` is what earlier sums must be multiplied by.
// Returns whether any of the group's maxima moved.
bool softmax_tile(const KeyTile& tile, std::int64_t stride, float* scores, float* max, float* sum, float* rescale) {
    const F32 d;
    bool moved = false;
    for (std::int64_t i = 0; i < stride; i += f32_lanes()) {
        const F32Vector old_max = hn::Load(d, max + i);
        F32Vector new_max = old_max;
        for (std::int64_t key = 0; key < tile.count; ++key) new_max = hn::Max(new_max, hn::Load(d, scores + key * stride + i));
        const F32Vector factor = exp(hn::Sub(old_max, new_max));
        F32Vector total = hn::Mul(hn::Load(d, sum + i), factor);
        for (std::int64_t key = 0; key < tile.count; ++key) {
            const F32Vector e = exp(hn::Sub(hn::Load(d, scores + key * stride + i), new_max));
            hn::Store(e, d, scores + key * stride + i);
            total = hn::Add(total, e);
        }
        moved = moved || !hn::AllFalse(d, hn::Gt(new_max, old_max));
        hn::Store(new_max, d, max + i);
        hn::Store(total, d, sum + i);
        hn::Store(factor, d, rescale + i);
    }
    return moved;
}

void attend_rows(const AnchorAttentionForwardParams& p, const RowGroup& rows) {
    const std::int64_t head_dim = rows.g.head_dim;
    const std::int64_t stride = padded(rows.count);
    HWY_ALIGN float q_t[kMaxAttentionHeadDim * kGroupRows];
    HWY_ALIGN float scores[kKeyTile * kGroupRows];
    HWY_ALIGN float out[kGroupRows * kMaxAttentionHeadDim], values[kKeyTile * kMaxAttentionHeadDim];
    HWY_ALIGN float max[kGroupRows], sum[kGroupRows] = {}, rescale[kGroupRows];
    std::fill_n(max, kGroupRows, -std::numeric_limits<float>::infinity());
    std::memset(out, 0, static_cast<std::size_t>(rows.count * head_dim) * sizeof(float));
    pack_transposed(rows, p.q.f32(), p.scale, q_t);
    for_each_key_tile(rows, [&](const KeyTile& tile) {
        const float* keys = (tile.own ? p.k_block : p.k_context).f32() + tile.offset(rows);
        gather_tile(rows, tile, (tile.own ? p.v_block : p.v_context).f32() + tile.offset(rows), values);
        tile_product(rows, tile, keys, rows.g.kv_stride, q_t, scores);
        hide_unseen(rows, tile, scores);
        if (softmax_tile(tile, stride, scores, max, sum, rescale)) {
            for (std::int64_t i = 0; i < rows.count; ++i) scale_row(rescale[i], out + i * head_dim, head_dim);
        }
        add_matmul(rows.count, head_dim, {tile.count, scores, 1, values, head_dim, out, head_dim, stride});
    });
    for (std::int64_t i = 0; i < rows.count; ++i) {
        float* y = p.out.f32() + rows.index(i) * head_dim;
        const F32Vector scale = hn::Set(F32(), 1.0F / sum[i]);
        const float* row = out + i * head_dim;
        for_each_vector(head_dim, [&](auto at) { at.store(hn::Mul(at.load(row), scale), y); });
        p.lse.f32()[rows.index(i)] = max[i] + std::log(sum[i]);
    }
}

// From scores and dO V^T: scores become P, products become dS = P (dO V^T - delta).
void weights_and_score_gradients(const KeyTile& tile, std::int64_t stride, const float* lse, const float* delta, float* scores,
                                 float* products) {
    const F32 d;
    for (std::int64_t i = 0; i < stride; i += f32_lanes()) {
        const F32Vector row_lse = hn::Load(d, lse + i);
        const F32Vector row_delta = hn::Load(d, delta + i);
        for (std::int64_t at = i; at < tile.count * stride; at += stride) {
            const F32Vector weight = exp(hn::Sub(hn::Load(d, scores + at), row_lse));
            hn::Store(weight, d, scores + at);
            hn::Store(hn::Mul(weight, hn::Sub(hn::Load(d, products + at), row_delta)), d, products + at);
        }
    }
}

void attend_rows_backward(const AnchorAttentionBackwardParams& p, const RowGroup& rows) {
    const std::int64_t head_dim = rows.g.head_dim;
    const std::int64_t stride = padded(rows.count);
    const std::int64_t kv_stride = rows.g.kv_stride;
    HWY_ALIGN float q_t[kMaxAttentionHeadDim * kGroupRows], d_out_t[kMaxAttentionHeadDim * kGroupRows];
    HWY_ALIGN float q[kGroupRows * kMaxAttentionHeadDim], d_out[kGroupRows * kMaxAttentionHeadDim], d_q[kGroupRows * kMaxAttentionHeadDim];
    HWY_ALIGN float scores[kKeyTile * kGroupRows], products[kKeyTile * kGroupRows], keys[kKeyTile * kMaxAttentionHeadDim];
    HWY_ALIGN float lse[kGroupRows] = {}, delta[kGroupRows] = {};
    pack_transposed(rows, p.q.f32(), p.scale, q_t);
    pack_transposed(rows, p.d_out.f32(), 1.0F, d_out_t);
    pack_rows(rows, p.q.f32(), p.scale, q);
    pack_rows(rows, p.d_out.f32(), 1.0F, d_out);
    std::memset(d_q, 0, static_cast<std::size_t>(rows.count * head_dim) * sizeof(float));
    for (std::int64_t i = 0; i < rows.count; ++i) {
        lse[i] = p.lse.f32()[rows.index(i)];
        const float* out = p.out.f32() + rows.index(i) * head_dim;
        F32Vector sum = hn::Zero(F32());
        for_each_vector(head_dim, [&](auto at) { sum = hn::MulAdd(at.load(d_out + i * head_dim), at.load(out), sum); });
        delta[i] = sum_of_lanes(sum);
        p.delta.f32()[rows.index(i)] = delta[i];
    }
    for_each_key_tile(rows, [&](const KeyTile& tile) {
        const std::int64_t offset = tile.offset(rows);
        const float* values = (tile.own ? p.v_block : p.v_context).f32() + offset;
        float* d_keys = (tile.own ? p.d_k_block : p.d_k_context).f32() + offset;
        float* d_values = (tile.own ? p.d_v_block : p.d_v_context).f32() + offset;
        gather_tile(rows, tile, (tile.own ? p.k_block : p.k_context).f32() + offset, keys);
        tile_product(rows, tile, keys, head_dim, q_t, scores);
        hide_unseen(rows, tile, scores);
        tile_product(rows, tile, values, kv_stride, d_out_t, products);
        weights_and_score_gradients(tile, stride, lse, delta, scores, products);
        add_matmul(tile.count, head_dim, {rows.count, scores, stride, d_out, head_dim, d_values, kv_stride});
        add_matmul(tile.count, head_dim, {rows.count, products, stride, q, head_dim, d_keys, kv_stride});
        add_matmul(rows.count, head_dim, {tile.count, products, 1, keys, head_dim, d_q, head_dim, stride});
    });
    for (std::int64_t i = 0; i < rows.count; ++i) {
        float* y = p.d_q.f32() + rows.index(i) * head_dim;
        const float* row = d_q + i * head_dim;
        for_each_vector(head_dim, [&](auto at) { at.store(hn::Mul(at.load(row), hn::Set(F32(), p.scale)), y); });
    }
}

}  // namespace dflash::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::cpu {

HWY_EXPORT(attend_rows);
HWY_EXPORT(attend_rows_backward);

namespace {

void zero_rows(const Tensor& x, std::int64_t from) {
    const Tensor rest = x.slice_rows(from, x.rows() - from);
    if (rest.elements() > 0) std::memset(rest.data, 0, rest.bytes());
}

template <typename Visit>
void for_each_row_group(const AttentionGeometry& g, std::int64_t block, std::int64_t kv_head, const Visit& visit) {
    for (std::int64_t first = 0; first < g.unit_rows(); first += kGroupRows) {
        visit(RowGroup{g, block, kv_head, first, std::min(kGroupRows, g.unit_rows() - first)});
    }
}

void check_head_dim(const AttentionGeometry& g) {
    DFLASH_CHECK(g.head_dim <= kMaxAttentionHeadDim, "anchor_attention: heads of {}, at most {}", g.head_dim, kMaxAttentionHeadDim);
}

// Live blocks in runs that share no context row, so that their dK and dV can be made side by side: run i is order[begins[i] .. begins[i+1]).
struct BlockRuns {
    explicit BlockRuns(const AnchorAttentionMask& mask) : order(static_cast<std::size_t>(mask.num_live)) {
        const std::int32_t* begin = mask.begin_row.i32();
        std::iota(order.begin(), order.end(), std::int32_t{0});
        std::stable_sort(order.begin(), order.end(), [begin](std::int32_t a, std::int32_t b) { return begin[a] < begin[b]; });
        std::int32_t reach = -1;
        for (std::size_t i = 0; i < order.size(); ++i) {
            if (begin[order[i]] >= reach) begins.push_back(i);
            reach = std::max(reach, mask.anchor_row.i32()[order[i]]);
        }
        begins.push_back(order.size());
    }
    std::vector<std::int32_t> order;
    std::vector<std::size_t> begins;
    std::int64_t count() const { return static_cast<std::int64_t>(begins.size()) - 1; }
};

}  // namespace

void anchor_attention_forward(const Context&, const AnchorAttentionForwardParams& p) {
    const AttentionGeometry g(p.q, p.k_context, p.mask);
    check_head_dim(g);
    const std::int64_t live = p.mask.num_live;
    zero_rows(p.out, live * g.width);
    zero_rows(p.lse, live * g.width);
    // Turn by turn: later blocks see more keys. One kv head at a time, so that its keys stay in the cache.
#pragma omp parallel for schedule(static, 1)
    for (std::int64_t unit = 0; unit < g.kv_heads * live; ++unit) {
        for_each_row_group(g, unit % live, unit / live, [&](const RowGroup& rows) { HWY_DYNAMIC_DISPATCH(attend_rows)(p, rows); });
    }
}

void anchor_attention_backward(const Context&, const AnchorAttentionBackwardParams& p) {
    const AttentionGeometry g(p.q, p.k_context, p.mask);
    check_head_dim(g);
    for (const Tensor* t : {&p.d_k_context, &p.d_v_context, &p.d_k_block, &p.d_v_block}) zero_rows(*t, 0);
    zero_rows(p.d_q, p.mask.num_live * g.width);
    zero_rows(p.delta, p.mask.num_live * g.width);
    const BlockRuns runs(p.mask);
#pragma omp parallel for schedule(static, 1)
    for (std::int64_t task = 0; task < g.kv_heads * runs.count(); ++task) {
        const std::int64_t run = task / g.kv_heads;
        for (std::size_t i = runs.begins[static_cast<std::size_t>(run)]; i < runs.begins[static_cast<std::size_t>(run) + 1]; ++i) {
            for_each_row_group(g, runs.order[i], task % g.kv_heads, [&](const RowGroup& rows) {
                HWY_DYNAMIC_DISPATCH(attend_rows_backward)(p, rows);
            });
        }
    }
}

}  // namespace dflash::cpu
#endif  // HWY_ONCE
