// SPDX-License-Identifier: MIT
// A unit of work is a tile of C. For each stretch of k the tile's part of B is copied into rows side by side, which the tile's rows
// of A then share.
#include "kernels/cpu/vector_matmul.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/vector_matmul.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/small_matmul-inl.h"

#ifndef DFLASH_KERNELS_CPU_VECTOR_MATMUL_ONCE
#define DFLASH_KERNELS_CPU_VECTOR_MATMUL_ONCE
namespace dflash::cpu {

constexpr std::int64_t kTileRows = 256, kTileColumns = 64, kStretch = 256;

}  // namespace dflash::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace dflash::cpu::HWY_NAMESPACE {

// C's rows [row, row + m) and columns [column, column + n), of at most kTileRows and kTileColumns.
void multiply_tile_of_c(std::int64_t row, std::int64_t m, std::int64_t column, std::int64_t n, std::int64_t k, const MatrixView& a,
                        const MatrixView& b, float* c, std::int64_t c_stride) {
    alignas(64) float b_rows[kStretch * kTileColumns];
    for (std::int64_t begin = 0; begin < k; begin += kStretch) {
        const std::int64_t length = std::min(kStretch, k - begin);
        const float* from = b.data + begin * b.row_stride + column * b.column_stride;
        if (b.column_stride == 1) {
            for (std::int64_t i = 0; i < length; ++i) std::copy_n(from + i * b.row_stride, n, b_rows + i * kTileColumns);
        } else {
            for (std::int64_t j = 0; j < n; ++j) {
                for (std::int64_t i = 0; i < length; ++i) b_rows[i * kTileColumns + j] = from[i * b.row_stride + j * b.column_stride];
            }
        }
        add_matmul(m, n,
                   {.k = length,
                    .a = a.data + row * a.row_stride + begin * a.column_stride,
                    .a_stride = a.row_stride,
                    .b = b_rows,
                    .b_stride = kTileColumns,
                    .c = c + row * c_stride + column,
                    .c_stride = c_stride,
                    .a_step = a.column_stride});
    }
}

}  // namespace dflash::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::cpu {

HWY_EXPORT(multiply_tile_of_c);

void vector_matmul(std::int64_t m, std::int64_t n, std::int64_t k, const MatrixView& a, const MatrixView& b, float* c, bool accumulate) {
    const std::int64_t tiles_down = (m + kTileRows - 1) / kTileRows;
    const std::int64_t tiles_across = (n + kTileColumns - 1) / kTileColumns;
    parallel_ranges(tiles_down * tiles_across, std::min(m, kTileRows) * k, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t tile = begin; tile < end; ++tile) {
            const std::int64_t row = tile / tiles_across * kTileRows, rows = std::min(kTileRows, m - row);
            const std::int64_t column = tile % tiles_across * kTileColumns, columns = std::min(kTileColumns, n - column);
            for (std::int64_t i = row; i < row + rows && !accumulate; ++i) std::fill_n(c + i * n + column, columns, 0.0F);
            HWY_DYNAMIC_DISPATCH(multiply_tile_of_c)(row, rows, column, columns, k, a, b, c, n);
        }
    });
}

}  // namespace dflash::cpu
#endif  // HWY_ONCE
