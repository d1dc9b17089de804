// SPDX-License-Identifier: MIT
// The columns that a row of materialised scores sees (kernels/masked_softmax.h): an interval of the context and one of the block keys.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define DFLASH_HOST_DEVICE __host__ __device__
#else
#define DFLASH_HOST_DEVICE
#endif

namespace dflash::ref {

struct MaskRange {
    std::int64_t context_begin, context_end;
    std::int64_t own_begin, own_end;  // columns too
    DFLASH_HOST_DEVICE bool sees(std::int64_t column) const {
        return (column >= context_begin && column < context_end) || (column >= own_begin && column < own_end);
    }
};

DFLASH_HOST_DEVICE inline MaskRange mask_range(const std::int32_t* begin_row, const std::int32_t* anchor_row, std::int64_t num_live,
                                               std::int64_t block_size, std::int64_t window, bool causal_block, std::int64_t context_rows,
                                               std::int64_t row) {
    const std::int64_t block = row / block_size, slot = row % block_size;
    if (block >= num_live) return {0, 0, 0, 0};
    const std::int64_t anchor = anchor_row[block], edge = anchor + slot - (window - 1);
    const std::int64_t begin = window > 0 && edge > begin_row[block] ? edge : begin_row[block];
    const std::int64_t own = context_rows + block * block_size;
    return {begin, anchor, own, own + (causal_block ? slot + 1 : block_size)};
}

}  // namespace dflash::ref
