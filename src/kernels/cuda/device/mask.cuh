// SPDX-License-Identifier: MIT
// The anchor mask on the device. Nothing is built ahead: a row's keys are two intervals, computed from the two integers of its block.
//
//   context rows [lo, hi)   and   block keys [own_lo, own_hi)   (rows of the block key tensors)
//
// A tile of keys is described by KeyTile: columns below `split` are context rows, the others block keys. So the last context rows of a
// group of blocks and the blocks' own keys can share one tile.
#pragma once

#include "mma.cuh"

namespace dflash::cuda::device {

struct AnchorMask {
    const int* begin;   // (A)
    const int* anchor;  // (A)
    int block_size;
    int live_tokens;  // num_live * block_size
    int window;       // 0 = full
    int causal_block;
};

struct RowBounds {
    int lo, hi, own_lo, own_hi;
};

__device__ __forceinline__ RowBounds row_bounds(const AnchorMask& mask, int token) {
    if (token >= mask.live_tokens) return {0, 0, 0, 0};
    const int block = token / mask.block_size;
    const int first = block * mask.block_size;
    const int anchor = mask.anchor[block];
    int lo = mask.begin[block];
    if (mask.window > 0) lo = max(lo, anchor + (token - first) - (mask.window - 1));
    return {lo, anchor, first, mask.causal_block ? token + 1 : first + mask.block_size};
}

// What a group of consecutive tokens sees: the union [lo, hi) and the part [full_lo, full_hi) that every live one of them sees.
struct ContextSpan {
    int lo, hi, full_lo, full_hi;
    __device__ __forceinline__ bool touches(int begin, int end) const { return lo < end && hi > begin; }
    __device__ __forceinline__ bool covers(int begin, int end) const { return full_lo <= begin && full_hi >= end; }
};

constexpr int kNoRow = 0x7fffffff;

__device__ __forceinline__ ContextSpan block_span(const AnchorMask& mask, int block) {
    const int anchor = mask.anchor[block];
    const int begin = mask.begin[block];
    if (mask.window == 0) return {begin, anchor, begin, anchor};
    return {max(begin, anchor - (mask.window - 1)), anchor, max(begin, anchor + mask.block_size - mask.window), anchor};
}

// Blocks that see nothing count for full_lo and full_hi (their rows need the mask everywhere), not for lo and hi.
__device__ __forceinline__ void widen(ContextSpan& span, const ContextSpan& other) {
    if (other.lo < other.hi) {
        span.lo = min(span.lo, other.lo);
        span.hi = max(span.hi, other.hi);
    }
    span.full_lo = max(span.full_lo, other.full_lo);
    span.full_hi = min(span.full_hi, other.full_hi);
}

// Live tokens of [token, token_end).
__device__ __forceinline__ ContextSpan token_span(const AnchorMask& mask, int token, int token_end) {
    ContextSpan span{kNoRow, 0, 0, kNoRow};
    const int end = min(token_end, mask.live_tokens);
    if (token >= end) return span;
    for (int block = token / mask.block_size; block * mask.block_size < end; ++block) widen(span, block_span(mask, block));
    return span;
}

struct KeyTile {
    int context;  // context row of column 0
    int split;    // columns [0, split) are context, [split, width) block keys
    int own;      // block key of column `split`
};

// The key tiles of a group of tokens, kWidth columns each. Own keys come first, so that every live row has a finite maximum from the
// first tile on; up to kFold of them share the tile of the last context rows.
template <int kWidth, int kFold>
struct KeyPlan {
    ContextSpan span;
    int own_lo, own_hi;
    int own_tiles;  // 0 when folded
    int tiles;      // all of them; 0 for dead tokens

    __device__ __forceinline__ KeyTile tile(int i) const {
        if (own_tiles > 0)
            return i < own_tiles ? KeyTile{0, 0, own_lo + i * kWidth} : KeyTile{span.lo + (i - own_tiles) * kWidth, kWidth, 0};
        return i > 0 ? KeyTile{span.lo + (i - 1) * kWidth, kWidth, 0} : KeyTile{span.lo + (tiles - 1) * kWidth, kWidth - kFold, own_lo};
    }
    // Every live row sees every column.
    __device__ __forceinline__ bool full(const KeyTile& t) const { return t.split == kWidth && span.covers(t.context, t.context + kWidth); }
    // Columns that some row may see; the others may hold anything, NaN included.
    __device__ __forceinline__ bool seen(const AnchorMask& mask, const KeyTile& t, int column) const {
        if (column >= t.split) return t.own + column - t.split < own_hi;
        const int row = t.context + column;
        for (int block = own_lo / mask.block_size; block * mask.block_size < own_hi; ++block) {
            const ContextSpan s = block_span(mask, block);
            if (row >= s.lo && row < s.hi) return true;
        }
        return false;
    }
};

template <int kWidth, int kFold>
__device__ __forceinline__ KeyPlan<kWidth, kFold> key_plan(const AnchorMask& mask, int token, int token_end) {
    KeyPlan<kWidth, kFold> plan;
    const int end = min(token_end, mask.live_tokens);
    plan.span = token_span(mask, token, token_end);
    plan.tiles = plan.own_tiles = plan.own_lo = plan.own_hi = 0;
    if (token >= end) return plan;
    plan.own_lo = token / mask.block_size * mask.block_size;
    plan.own_hi = (end + mask.block_size - 1) / mask.block_size * mask.block_size;
    if (plan.span.hi <= plan.span.lo) plan.span.lo = plan.span.hi = 0;
    const int own = plan.own_hi - plan.own_lo;
    const int context = plan.span.hi - plan.span.lo;
    if (own <= kFold) {
        plan.tiles = 1 + (context > kWidth - kFold ? (context - (kWidth - kFold) + kWidth - 1) / kWidth : 0);
    } else {
        plan.own_tiles = (own + kWidth - 1) / kWidth;
        plan.tiles = plan.own_tiles + (context + kWidth - 1) / kWidth;
    }
    return plan;
}

// A thread holds columns 8 n + 2 q + j of its rows, q = lane % 4. As bit 2 n + j: those below `bound`.
template <int kN>
__device__ __forceinline__ std::uint32_t columns_below(int bound, int lane) {
    static_assert(kN <= 16);
    const int b = bound - 2 * (lane & 3);
    const int count = max(min(2 * (b >> 3) + min(b & 7, 2), 2 * kN), 0);
    return count >= 32 ? 0xffffffffU : (1U << count) - 1U;
}
// Those of a tile that a row sees.
template <int kN>
__device__ __forceinline__ std::uint32_t seen_columns(const RowBounds& row, const KeyTile& t, int lane) {
    const std::uint32_t context = columns_below<kN>(min(row.hi - t.context, t.split), lane) & ~columns_below<kN>(row.lo - t.context, lane);
    const int own = t.split - t.own;
    return context | (columns_below<kN>(row.own_hi + own, lane) & ~columns_below<kN>(max(row.own_lo + own, t.split), lane));
}

// Which of a thread's accumulators lie on visible pairs; bit 2 n + j of half h.
struct SeenBits {
    std::uint32_t half[2];
};
template <int kN>
__device__ __forceinline__ SeenBits seen_by_rows(const RowBounds (&rows)[2], const KeyTile& t, int lane) {
    return {{seen_columns<kN>(rows[0], t, lane), seen_columns<kN>(rows[1], t, lane)}};
}
// The transposed case: the accumulator's rows are keys `key` and key + 8, its columns query rows with the key interval bounds[column].
template <int kN>
__device__ __forceinline__ SeenBits seen_by_columns(const int2* bounds, int key, int lane) {
    SeenBits seen{{0, 0}};
#pragma unroll
    for (int n = 0; n < kN; ++n) {
        const int4 pair = reinterpret_cast<const int4*>(bounds)[4 * n + (lane & 3)];
        const std::uint32_t first = 1U << (2 * n), second = 2U << (2 * n);
        if (key >= pair.x && key < pair.y) seen.half[0] |= first;
        if (key >= pair.z && key < pair.w) seen.half[0] |= second;
        if (key + 8 >= pair.x && key + 8 < pair.y) seen.half[1] |= first;
        if (key + 8 >= pair.z && key + 8 < pair.w) seen.half[1] |= second;
    }
    return seen;
}
template <int kN>
__device__ __forceinline__ void fill_unseen(float (&acc)[kN][4], const SeenBits& seen, float fill) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if ((seen.half[e / 2] & (1U << (2 * n + e % 2))) == 0) acc[n][e] = fill;
        }
    }
}

}  // namespace dflash::cuda::device
