// SPDX-License-Identifier: MIT
// A block a row: the row is read from memory once and from the caches again for the second pass. Backward gives each block a fixed number of
// rows, so that the sums for the weight are made in an order that depends on the shape alone. The gated norm's rows are heads: short, several to
// a block.
#include "kernels/backends.h"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/workspace.h"

namespace dflash::cuda {
namespace {

using device::Bf16;
using device::load;
using device::store;

constexpr int kThreads = 256;
constexpr int kBackwardThreads = 512;
constexpr int kMostColumns = 32 * kBackwardThreads;  // a thread of backward keeps the sums of 32 columns
constexpr int kColumnThreads = 128;

template <int kWidth>
__global__ void rms_norm_forward_kernel(Bf16* x, const Bf16* weight, const Bf16* residual, Bf16* y, float* rstd, std::int64_t columns,
                                        float eps, float offset) {
    __shared__ float shared[kThreads / device::kWarp];
    x += blockIdx.x * columns;
    y += blockIdx.x * columns;
    float squares = 0;
    for (std::int64_t i = threadIdx.x * kWidth; i < columns; i += kThreads * kWidth) {
        float v[kWidth];
        load<kWidth>(x + i, v);
        if (residual != nullptr) {
            float r[kWidth];
            load<kWidth>(residual + blockIdx.x * columns + i, r);
#pragma unroll
            for (int j = 0; j < kWidth; ++j) v[j] = __bfloat162float(__float2bfloat16_rn(v[j] + r[j]));
            store<kWidth>(x + i, v);
        }
#pragma unroll
        for (int j = 0; j < kWidth; ++j) squares += v[j] * v[j];
    }
    const float scale = rsqrtf(device::block_sum<kThreads>(squares, shared) / static_cast<float>(columns) + eps);
    if (rstd != nullptr && threadIdx.x == 0) rstd[blockIdx.x] = scale;
    for (std::int64_t i = threadIdx.x * kWidth; i < columns; i += kThreads * kWidth) {
        float v[kWidth], w[kWidth];
        load<kWidth>(x + i, v);
        load<kWidth>(weight + i, w);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) v[j] *= (offset + w[j]) * scale;
        store<kWidth>(y + i, v);
    }
}

// d_x and, per block, the sum over its rows of d_y x rstd.
template <int kWidth>
__global__ void __launch_bounds__(kBackwardThreads)
    rms_norm_backward_kernel(const Bf16* d_y, const Bf16* x, const Bf16* weight, const float* rstd, Bf16* d_x, bool accumulate,
                             float* partial, std::int64_t rows, std::int64_t columns, std::int64_t rows_each, float offset) {
    constexpr int kHeld = 32 / kWidth;
    __shared__ float shared[kBackwardThreads / device::kWarp];
    float sums[kHeld][kWidth] = {};
    const std::int64_t begin = blockIdx.x * rows_each;
    const std::int64_t end = min(begin + rows_each, rows);
    for (std::int64_t row = begin; row < end; ++row) {
        const float scale = rstd[row];
        float dot = 0;
#pragma unroll
        for (int held = 0; held < kHeld; ++held) {
            const std::int64_t i = (static_cast<std::int64_t>(held) * kBackwardThreads + threadIdx.x) * kWidth;
            if (i >= columns) break;
            float g[kWidth], v[kWidth], w[kWidth];
            load<kWidth>(d_y + row * columns + i, g);
            load<kWidth>(x + row * columns + i, v);
            load<kWidth>(weight + i, w);
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
                const float normed = v[j] * scale;
                sums[held][j] += g[j] * normed;
                dot += g[j] * (offset + w[j]) * normed;
            }
        }
        const float mean = device::block_sum<kBackwardThreads>(dot, shared) / static_cast<float>(columns);
#pragma unroll
        for (int held = 0; held < kHeld; ++held) {
            const std::int64_t i = (static_cast<std::int64_t>(held) * kBackwardThreads + threadIdx.x) * kWidth;
            if (i >= columns) break;
            float g[kWidth], v[kWidth], w[kWidth], before[kWidth] = {};
            load<kWidth>(d_y + row * columns + i, g);
            load<kWidth>(x + row * columns + i, v);
            load<kWidth>(weight + i, w);
            if (accumulate) load<kWidth>(d_x + row * columns + i, before);
#pragma unroll
            for (int j = 0; j < kWidth; ++j) g[j] = before[j] + scale * (g[j] * (offset + w[j]) - v[j] * scale * mean);
            store<kWidth>(d_x + row * columns + i, g);
        }
    }
#pragma unroll
    for (int held = 0; held < kHeld; ++held) {
        const std::int64_t i = (static_cast<std::int64_t>(held) * kBackwardThreads + threadIdx.x) * kWidth;
        if (i < columns) store<kWidth>(partial + blockIdx.x * columns + i, sums[held]);
    }
}

// kLanes neighbouring threads a row.
template <int kWidth, int kLanes>
__global__ void __launch_bounds__(kThreads) gated_rms_norm_kernel(const Bf16* x, const Bf16* z, const float* weight, Bf16* y,
                                                                  std::int64_t rows, int columns, float eps, bool sigmoid_gate) {
    const int lane = threadIdx.x % kLanes;
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
    const bool there = row < rows;  // all lanes of a warp go on to the exchange
    const std::int64_t first = row * columns;
    float squares = 0;
    for (int i = lane * kWidth; there && i < columns; i += kLanes * kWidth) {
        float v[kWidth];
        load<kWidth>(x + first + i, v);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) squares += v[j] * v[j];
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
    const float scale = rsqrtf(squares / static_cast<float>(columns) + eps);
    for (int i = lane * kWidth; there && i < columns; i += kLanes * kWidth) {
        float v[kWidth], gate[kWidth], w[kWidth];
        load<kWidth>(x + first + i, v);
        load<kWidth>(z + first + i, gate);
        load<kWidth>(weight + i, w);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
            const float s = 1.0F / (1.0F + __expf(-gate[j]));
            v[j] *= w[j] * scale * (sigmoid_gate ? s : gate[j] * s);
        }
        store<kWidth>(y + first + i, v);
    }
}

__global__ void add_partials_kernel(const float* partial, int partials, std::int64_t columns, float* sum) {
    const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x;
    if (column >= columns) return;
    float total = 0;
    for (int i = 0; i < partials; ++i) total += partial[i * columns + column];
    sum[column] += total;
}

}  // namespace

void rms_norm_forward(const Context& context, const RmsNormForwardParams& p) {
    check_bf16("rms_norm_forward", {&p.x, &p.weight, &p.residual, &p.y});
    const std::int64_t columns = p.weight.elements();
    with_width(in_vectors(columns, {&p.x, &p.weight, &p.residual, &p.y}), [&](auto width) {
        rms_norm_forward_kernel<decltype(width)::value><<<static_cast<unsigned>(p.x.rows()), kThreads, 0, stream_of(context)>>>(
            bf16(p.x), bf16(p.weight), bf16(p.residual), bf16(p.y), f32_or_null(p.rstd), columns, p.eps, p.weight_offset);
    });
    DFLASH_LAUNCH_CHECK("rms_norm_forward");
}

void rms_norm_backward(const Context& context, const RmsNormBackwardParams& p) {
    check_bf16("rms_norm_backward", {&p.d_y, &p.x, &p.weight, &p.d_x});
    const std::int64_t rows = p.x.rows();
    const std::int64_t columns = p.weight.elements();
    DFLASH_CHECK(columns <= kMostColumns, "rms_norm_backward: rows of {}, at most {} are built", columns, kMostColumns);
    const std::int64_t rows_each = std::max<std::int64_t>(8, (rows + kRmsNormPartials - 1) / kRmsNormPartials);
    const auto blocks = static_cast<int>((rows + rows_each - 1) / rows_each);
    auto* partial = static_cast<float*>(context.workspace(static_cast<std::size_t>(blocks * columns) * sizeof(float)));
    with_width(in_vectors(columns, {&p.d_y, &p.x, &p.weight, &p.d_x}), [&](auto width) {
        rms_norm_backward_kernel<decltype(width)::value><<<static_cast<unsigned>(blocks), kBackwardThreads, 0, stream_of(context)>>>(
            bf16(p.d_y), bf16(p.x), bf16(p.weight), p.rstd.f32(), bf16(p.d_x), p.write == Write::kAccumulate, partial, rows, columns,
            rows_each, p.weight_offset);
    });
    DFLASH_LAUNCH_CHECK("rms_norm_backward");
    add_partials_kernel<<<blocks_for(columns, kColumnThreads), kColumnThreads, 0, stream_of(context)>>>(partial, blocks, columns,
                                                                                                        p.d_weight.f32());
    DFLASH_LAUNCH_CHECK("rms_norm_backward, sums");
}

void gated_rms_norm_forward(const Context& context, const GatedRmsNormParams& p) {
    check_bf16("gated_rms_norm_forward", {&p.x, &p.z, &p.y});
    const std::int64_t columns = p.weight.elements();
    const std::int64_t rows = p.x.elements() / columns;
    const auto launch = [&]<int kWidth, int kLanes>(std::integral_constant<int, kWidth>, std::integral_constant<int, kLanes>) {
        constexpr int kRows = kThreads / kLanes;
        gated_rms_norm_kernel<kWidth, kLanes><<<static_cast<unsigned>((rows + kRows - 1) / kRows), kThreads, 0, stream_of(context)>>>(
            bf16(p.x), bf16(p.z), p.weight.f32(), bf16(p.y), rows, static_cast<int>(columns), p.eps, p.sigmoid_gate);
    };
    with_width(in_vectors(columns, {&p.x, &p.z, &p.weight, &p.y}), [&](auto width) {
        if (columns <= 16 * decltype(width)::value) {
            launch(width, std::integral_constant<int, 16>{});
        } else {
            launch(width, std::integral_constant<int, device::kWarp>{});
        }
    });
    DFLASH_LAUNCH_CHECK("gated_rms_norm_forward");
}

}  // namespace dflash::cuda
