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
        if (own_tiles > 0) return i < own_tiles ? KeyTile{0, 0, own_lo + i * kWidth} : KeyTile{span.lo + (i - own_tiles) * kWidth, kWidth, 0};
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

// Columns of one tile that one row sees.
struct ColumnBounds {
    int lo, hi, own_lo, own_hi;
    __device__ __forceinline__ bool sees(int column) const { return (column >= lo && column < hi) || (column >= own_lo && column < own_hi); }
};
__device__ __forceinline__ ColumnBounds column_bounds(const RowBounds& row, const KeyTile& t) {
    return {row.lo - t.context, min(row.hi - t.context, t.split), max(row.own_lo - t.own, 0) + t.split, row.own_hi - t.own + t.split};
}

// Writes `fill` over the accumulators of columns that the thread's two rows do not see.
template <int kN>
__device__ __forceinline__ void mask_columns(float (&acc)[kN][4], const RowBounds (&rows)[2], const KeyTile& t, float fill, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const ColumnBounds bounds = column_bounds(rows[half], t);
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                if (!bounds.sees(8 * n + 2 * (lane & 3) + j)) acc[n][2 * half + j] = fill;
            }
        }
    }
}

// The transposed case: the accumulator's rows are keys, its columns query rows with the key interval bounds[column].
template <int kN>
__device__ __forceinline__ void mask_keys(float (&acc)[kN][4], const int2* bounds, int key, float fill, int lane) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int2 b = bounds[8 * n + 2 * (lane & 3) + j];
            if (key < b.x || key >= b.y) acc[n][j] = fill;
            if (key + 8 < b.x || key + 8 >= b.y) acc[n][2 + j] = fill;
        }
    }
}

}  // namespace dflash::cuda::device
