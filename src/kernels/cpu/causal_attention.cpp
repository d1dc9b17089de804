// SPDX-License-Identifier: MIT
// Tiled attention with an online softmax. Unit of work: (16 query rows, one kv head) with all its query heads. Key tiles of 64 start at the
// row's own first key, and each row stops at its own last key, so a row's bits depend on its own keys alone: not on the rows beside it, nor
// on where its document lies in a packed batch. Bound by arithmetic: two products of D x 64 a row, head and tile.
#include "kernels/causal_attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/backends.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/causal_attention.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/small_matmul-inl.h"

#ifndef DFLASH_KERNELS_CPU_CAUSAL_ATTENTION_ONCE
#define DFLASH_KERNELS_CPU_CAUSAL_ATTENTION_ONCE
namespace dflash::cpu {

constexpr std::int64_t kQueryRows = 16;
constexpr std::int64_t kKeyTile = 64;
constexpr std::int64_t kMaxHeadDim = 256;
constexpr std::int64_t kMaxGroup = 64;

struct AttentionJob {
    const float* q;
    const float* k;
    const float* v;
    const std::int32_t* key_begin;
    const std::int32_t* key_end;
    float* out;
    std::int64_t heads, kv_heads, head_dim;
    float scale;
    std::int64_t group() const { return heads / kv_heads; }
};

}  // namespace dflash::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace dflash::cpu::HWY_NAMESPACE {

// The running maximum and sum of one (row, head).
struct SoftmaxState {
    float largest = -std::numeric_limits<float>::infinity();
    float sum = 0.0F;
};

// score[0, n) -> e^(scale score - new maximum); beyond n, up to whole vectors, zero. Returns the factor for what was summed before.
float softmax_update(float* score, std::int64_t n, float scale, SoftmaxState& state) {
    const Wide wide;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(wide));
    const std::int64_t padded = (n + lanes - 1) / lanes * lanes;
    std::fill(score + n, score + padded, -std::numeric_limits<float>::infinity());
    auto largest = hn::Set(wide, state.largest);
    const auto factor = hn::Set(wide, scale);
    for (std::int64_t j = 0; j < padded; j += lanes) {
        const auto scaled = hn::Mul(hn::LoadU(wide, score + j), factor);
        hn::StoreU(scaled, wide, score + j);
        largest = hn::Max(largest, scaled);
    }
    const float new_largest = hn::GetLane(hn::MaxOfLanes(wide, largest));
    const auto shift = hn::Set(wide, new_largest);
    auto sum = hn::Zero(wide);
    for (std::int64_t j = 0; j < padded; j += lanes) {
        const auto p = exp(hn::Sub(hn::LoadU(wide, score + j), shift));
        hn::StoreU(p, wide, score + j);
        sum = hn::Add(sum, p);
    }
    const float rescale = std::exp(state.largest - new_largest);
    state.largest = new_largest;
    state.sum = state.sum * rescale + hn::GetLane(hn::SumOfLanes(wide, sum));
    return rescale;
}

// keys (n, D) with a row stride -> keys_t (D, kKeyTile)
void transpose_keys(const float* keys, std::int64_t stride, std::int64_t n, std::int64_t head_dim, float* keys_t) {
    for (std::int64_t d = 0; d < head_dim; ++d) {
        float* column = keys_t + d * kKeyTile;
        for (std::int64_t j = 0; j < n; ++j) column[j] = keys[j * stride + d];
        std::fill(column + n, column + kKeyTile, 0.0F);
    }
}

// Rows [row, row + rows) of one query head against one key tile; seen[i] keys of the tile are visible to row i.
void attend_tile(const AttentionJob& job, std::int64_t row, std::int64_t rows, std::int64_t head, const float* keys_t, const float* values,
                 const std::int64_t* seen, SoftmaxState* states) {
    const std::int64_t q_stride = job.heads * job.head_dim;
    const std::int64_t kv_stride = job.kv_heads * job.head_dim;
    alignas(64) float score[kQueryRows * kKeyTile];
    std::fill(score, score + rows * kKeyTile, 0.0F);
    const float* q = job.q + row * q_stride + head * job.head_dim;
    float* out = job.out + row * q_stride + head * job.head_dim;
    add_matmul(rows, kKeyTile, {job.head_dim, q, q_stride, keys_t, kKeyTile, score, kKeyTile});
    for (std::int64_t i = 0; i < rows; ++i) {
        if (seen[i] == 0) continue;
        const float rescale = softmax_update(score + i * kKeyTile, seen[i], job.scale, states[i]);
        if (rescale != 1.0F) scale_row(rescale, out + i * q_stride, job.head_dim);
    }
    for (std::int64_t i = 0; i < rows;) {  // rows that see equally many keys go together
        std::int64_t end = i + 1;
        while (end < rows && seen[end] == seen[i]) ++end;
        add_matmul(end - i, job.head_dim, {seen[i], score + i * kKeyTile, kKeyTile, values, kv_stride, out + i * q_stride, q_stride});
        i = end;
    }
}

// Rows [row, row + rows), rows <= kQueryRows, that share key_begin; all query heads of one kv head.
void attend_run(const AttentionJob& job, std::int64_t row, std::int64_t rows, std::int64_t kv_head) {
    const std::int64_t stride = job.kv_heads * job.head_dim;
    const std::int64_t begin = job.key_begin[row];
    const std::int64_t end = *std::max_element(job.key_end + row, job.key_end + row + rows);
    alignas(64) float keys_t[kMaxHeadDim * kKeyTile];
    SoftmaxState states[kMaxGroup * kQueryRows];
    std::int64_t seen[kQueryRows];
    for (std::int64_t tile = begin; tile < end; tile += kKeyTile) {
        const std::int64_t first = tile * stride + kv_head * job.head_dim;
        transpose_keys(job.k + first, stride, std::min(kKeyTile, end - tile), job.head_dim, keys_t);
        for (std::int64_t i = 0; i < rows; ++i) seen[i] = std::clamp<std::int64_t>(job.key_end[row + i] - tile, 0, kKeyTile);
        for (std::int64_t g = 0; g < job.group(); ++g) {
            attend_tile(job, row, rows, kv_head * job.group() + g, keys_t, job.v + first, seen, states + g * kQueryRows);
        }
    }
    for (std::int64_t g = 0; g < job.group(); ++g) {
        for (std::int64_t i = 0; i < rows; ++i) {
            float* out = job.out + ((row + i) * job.heads + kv_head * job.group() + g) * job.head_dim;
            const float sum = states[g * kQueryRows + i].sum;
            if (sum != 0.0F) scale_row(1.0F / sum, out, job.head_dim);  // 0: the row sees nothing and is zero already
        }
    }
}

void attend_rows(const AttentionJob& job, std::int64_t row, std::int64_t rows, std::int64_t kv_head) {
    const std::int64_t heads_dim = job.group() * job.head_dim;
    for (std::int64_t i = 0; i < rows; ++i) {
        float* out = job.out + (row + i) * job.heads * job.head_dim + kv_head * heads_dim;
        std::fill(out, out + heads_dim, 0.0F);
    }
    for (std::int64_t i = 0; i < rows;) {
        std::int64_t end = i + 1;
        while (end < rows && job.key_begin[row + end] == job.key_begin[row + i]) ++end;
        attend_run(job, row + i, end - i, kv_head);
        i = end;
    }
}

}  // namespace dflash::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::cpu {

HWY_EXPORT(attend_rows);

std::size_t causal_attention_workspace_bytes(std::int64_t, std::int64_t, std::int64_t, std::int64_t) { return 0; }

void causal_attention_forward(const Context&, const CausalAttentionParams& p) {
    const AttentionJob job{p.q.f32(),   p.k.f32(),    p.v.f32(),    p.key_begin.i32(), p.key_end.i32(),
                           p.out.f32(), p.q.shape[1], p.k.shape[1], p.q.shape[2],      p.scale};
    DFLASH_CHECK(job.head_dim <= kMaxHeadDim && job.group() <= kMaxGroup,
                 "causal_attention: head dim {} (at most {}), {} heads a kv head (at most {})", job.head_dim, kMaxHeadDim, job.group(),
                 kMaxGroup);
    const std::int64_t rows = p.q.shape[0];
    const std::int64_t tiles = (rows + kQueryRows - 1) / kQueryRows;
    // Later rows see more keys: tiles are dealt out in turn, so that threads get equal work.
    const bool small = rows * job.heads * p.k.shape[0] <= kSerialElements;
#pragma omp parallel for collapse(2) schedule(static, 1) if (!small)
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
        for (std::int64_t kv_head = 0; kv_head < job.kv_heads; ++kv_head) {
            const std::int64_t row = tile * kQueryRows;
            HWY_DYNAMIC_DISPATCH(attend_rows)(job, row, std::min(kQueryRows, rows - row), kv_head);
        }
    }
}

}  // namespace dflash::cpu
#endif
