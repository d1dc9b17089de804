// SPDX-License-Identifier: MIT
// Bound by memory: rows are copied whole, and the compiler's vectors are enough for the scaling.
#include <cstring>

#include "kernels/backends.h"
#include "kernels/cpu/parallel.h"

namespace dflash::cpu {

void gather_rows(const Context&, const GatherRowsParams& p) {
    const std::int64_t columns = p.table.row_elements();
    parallel_ranges(p.ids.elements(), columns, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            std::memcpy(p.y.f32() + i * columns, p.table.f32() + p.ids.i32()[i] * columns,
                        static_cast<std::size_t>(columns) * sizeof(float));
        }
    });
}

void scatter_rows(const Context&, const ScatterRowsParams& p) {
    const std::int64_t columns = p.y.row_elements();
    parallel_ranges(p.ids.elements(), columns, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const float scale = p.scale.defined() ? p.scale.f32()[i] : 1.0F;
            const float* x = p.x.f32() + i * columns;
            float* y = p.y.f32() + p.ids.i32()[i] * columns;
            for (std::int64_t c = 0; c < columns; ++c) y[c] = scale * x[c];
        }
    });
}

}  // namespace dflash::cpu
