// SPDX-License-Identifier: MIT
// A block a row. Row numbers come from code that has checked them (ids of a tokenizer, lists of live rows); one outside the table is not read.
#include "kernels/backends.h"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/launch.cuh"

namespace dflash::cuda {
namespace {

constexpr int kThreads = 128;

template <int kWidth>
__global__ void gather_kernel(const device::Bf16* table, std::int64_t table_rows, std::int64_t columns, const std::int32_t* ids,
                              device::Bf16* y) {
    const std::int64_t id = ids[blockIdx.x];
    const bool there = id >= 0 && id < table_rows;
    for (std::int64_t i = threadIdx.x * kWidth; i < columns; i += kThreads * kWidth) {
        float x[kWidth];
#pragma unroll
        for (int j = 0; j < kWidth; ++j) x[j] = NAN;
        if (there) device::load<kWidth>(table + id * columns + i, x);
        device::store<kWidth>(y + blockIdx.x * columns + i, x);
    }
}

template <int kWidth>
__global__ void scatter_kernel(const device::Bf16* from, std::int64_t columns, const std::int32_t* ids, const float* scale,
                               std::int64_t y_rows, device::Bf16* y) {
    const std::int64_t id = ids[blockIdx.x];
    if (id < 0 || id >= y_rows) return;
    const float factor = scale == nullptr ? 1.0F : scale[blockIdx.x];
    for (std::int64_t i = threadIdx.x * kWidth; i < columns; i += kThreads * kWidth) {
        float x[kWidth];
        device::load<kWidth>(from + blockIdx.x * columns + i, x);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) x[j] *= factor;
        device::store<kWidth>(y + id * columns + i, x);
    }
}

}  // namespace

void gather_rows(const Context& context, const GatherRowsParams& p) {
    check_bf16("gather_rows", {&p.table, &p.y});
    const std::int64_t columns = p.table.row_elements();
    with_width(in_vectors(columns, {&p.table, &p.y}), [&](auto width) {
        gather_kernel<decltype(width)::value><<<static_cast<unsigned>(p.ids.elements()), kThreads, 0, stream_of(context)>>>(
            bf16(p.table), p.table.rows(), columns, p.ids.i32(), bf16(p.y));
    });
    DFLASH_LAUNCH_CHECK("gather_rows");
}

void scatter_rows(const Context& context, const ScatterRowsParams& p) {
    check_bf16("scatter_rows", {&p.x, &p.y});
    const std::int64_t columns = p.y.row_elements();
    with_width(in_vectors(columns, {&p.x, &p.y}), [&](auto width) {
        scatter_kernel<decltype(width)::value><<<static_cast<unsigned>(p.ids.elements()), kThreads, 0, stream_of(context)>>>(
            bf16(p.x), columns, p.ids.i32(), f32_or_null(p.scale), p.y.rows(), bf16(p.y));
    });
    DFLASH_LAUNCH_CHECK("scatter_rows");
}

}  // namespace dflash::cuda
