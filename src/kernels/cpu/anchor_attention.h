// SPDX-License-Identifier: MIT
// How the CPU cuts anchor attention into work. A unit is (block, kv head): its W x H/G query rows see the same keys, so one read of a key
// serves them all. Units of many rows are taken in groups of kGroupRows; keys come in tiles, the block's own first (then every row has a
// finite maximum from the start).
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/anchor_attention.h"

namespace dflash::cpu {

constexpr std::int64_t kKeyTile = 64;
constexpr std::int64_t kGroupRows = 32;
constexpr std::int64_t kMaxAttentionHeadDim = 256;

struct AttentionGeometry {
    AttentionGeometry(const Tensor& q, const Tensor& k_context, const AnchorAttentionMask& m)
        : mask(m),
          width(m.block_size),
          heads(q.shape[1]),
          kv_heads(k_context.shape[1]),
          group(heads / kv_heads),
          head_dim(q.shape[2]),
          kv_stride(kv_heads * head_dim) {}

    const AnchorAttentionMask& mask;
    std::int64_t width, heads, kv_heads, group, head_dim;
    std::int64_t kv_stride;  // elements between the rows of one kv head
    std::int64_t unit_rows() const { return width * group; }

    // First context row that a slot sees (at or after the anchor: none).
    std::int64_t first_visible(std::int64_t block, std::int64_t slot) const {
        const std::int64_t begin = mask.begin_row.i32()[block];
        if (mask.window == 0) return begin;
        return std::max(begin, static_cast<std::int64_t>(mask.anchor_row.i32()[block]) + slot - (mask.window - 1));
    }
};

// Query rows [first, first + count) of a unit: row i is slot i / group, query head kv_head * group + i % group.
struct RowGroup {
    const AttentionGeometry& g;
    std::int64_t block, kv_head, first, count;

    std::int64_t slot(std::int64_t i) const { return (first + i) / g.group; }
    // Of row i in a tensor (A*W, H), and, times D, in one of (A*W, H, D).
    std::int64_t index(std::int64_t i) const { return (block * g.width + slot(i)) * g.heads + kv_head * g.group + (first + i) % g.group; }
};

// Up to kKeyTile keys that at least one row of a group sees. `first` counts context rows, or own slots when `own`.
struct KeyTile {
    bool own = false;
    std::int64_t first = 0, count = 0;
    bool masked = false;  // not every row sees every key

    bool visible(const RowGroup& rows, std::int64_t row, std::int64_t key) const {
        const std::int64_t slot = rows.slot(row);
        return own ? !rows.g.mask.causal_block || first + key <= slot : first + key >= rows.g.first_visible(rows.block, slot);
    }
    // Element offset of the first key in a context or block tensor.
    std::int64_t offset(const RowGroup& rows) const {
        return ((own ? rows.block * rows.g.width : 0) + first) * rows.g.kv_stride + rows.kv_head * rows.g.head_dim;
    }
};

template <typename Visit>
void for_each_key_tile(const RowGroup& rows, const Visit& visit) {
    const AttentionGeometry& g = rows.g;
    const std::int64_t own_keys = g.mask.causal_block ? rows.slot(rows.count - 1) + 1 : g.width;
    for (std::int64_t first = 0; first < own_keys; first += kKeyTile) {
        visit(KeyTile{true, first, std::min(kKeyTile, own_keys - first), g.mask.causal_block});
    }
    const std::int64_t end = g.mask.anchor_row.i32()[rows.block];
    const std::int64_t all_see_from = g.first_visible(rows.block, rows.slot(rows.count - 1));
    for (std::int64_t first = g.first_visible(rows.block, rows.slot(0)); first < end; first += kKeyTile) {
        visit(KeyTile{false, first, std::min(kKeyTile, end - first), first < all_see_from});
    }
}

}  // namespace dflash::cpu
