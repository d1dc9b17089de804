// SPDX-License-Identifier: MIT
// A warp a head of a row. Lanes take pairs of neighbouring elements of the first half of the rotary part together with their partners in the
// second half, then pairs of the part that is not rotated.
#include "kernels/backends.h"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/workspace.h"

namespace dflash::cuda {
namespace {

using device::Bf16;
using device::kWarp;
using device::load;
using device::store;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMostHeadDim = 256;
constexpr int kPairs = kMostHeadDim / 2 / kWarp;  // of neighbouring elements, a lane

// Pair number `slot` of a lane: elements [first, first + 1]. Pairs up to half the rotary part come with a partner `half` further on.
struct Layout {
    int head_dim, half;  // half = rotary dims / 2; both even
    __device__ int rotated_pairs() const { return half / 2; }
    __device__ int pairs() const { return half / 2 + (head_dim - 2 * half) / 2; }
    __device__ int first(int pair) const { return pair < half / 2 ? 2 * pair : 2 * half + 2 * (pair - half / 2); }
};

struct ForwardArgs {
    const Bf16 *x, *weight;
    std::int64_t row_stride, head_stride;
    const std::int32_t* positions;
    const float *cos, *sin;
    Bf16* y;
    float* rstd;
    std::int64_t rows;
    int heads;
    float eps, offset;
    Layout layout;
};

__global__ void head_norm_rope_forward_kernel(const __grid_constant__ ForwardArgs a) {
    const int lane = threadIdx.x % kWarp;
    const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
    if (item >= a.rows * a.heads) return;
    const std::int64_t row = item / a.heads;
    const Bf16* x = a.x + row * a.row_stride + item % a.heads * a.head_stride;
    Bf16* y = a.y + item * a.layout.head_dim;
    const int pairs = a.layout.pairs(), rotated = a.layout.rotated_pairs(), half = a.layout.half;
    float v[kPairs][2], partner[kPairs][2];
    float squares = 0;
#pragma unroll
    for (int slot = 0; slot < kPairs; ++slot) {
        const int pair = slot * kWarp + lane;
        if (pair >= pairs) break;
        load<2>(x + a.layout.first(pair), v[slot]);
        squares += v[slot][0] * v[slot][0] + v[slot][1] * v[slot][1];
        if (pair < rotated) {
            load<2>(x + a.layout.first(pair) + half, partner[slot]);
            squares += partner[slot][0] * partner[slot][0] + partner[slot][1] * partner[slot][1];
        }
    }
    float scale = 1.0F;
    if (a.weight != nullptr) {
        scale = rsqrtf(device::warp_sum(squares) / static_cast<float>(a.layout.head_dim) + a.eps);
        if (a.rstd != nullptr && lane == 0) a.rstd[item] = scale;
    }
    const std::int64_t angle = static_cast<std::int64_t>(a.positions[row]) * half;
#pragma unroll
    for (int slot = 0; slot < kPairs; ++slot) {
        const int pair = slot * kWarp + lane;
        if (pair >= pairs) break;
        const int first = a.layout.first(pair);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float gain = a.weight == nullptr ? 1.0F : a.offset + __bfloat162float(a.weight[first + j]);
            v[slot][j] *= gain * scale;
        }
        if (pair >= rotated) {
            store<2>(y + first, v[slot]);
            continue;
        }
        float low[2], high[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float gain = a.weight == nullptr ? 1.0F : a.offset + __bfloat162float(a.weight[first + half + j]);
            const float n = partner[slot][j] * gain * scale;
            const float c = a.cos[angle + first + j], s = a.sin[angle + first + j];
            low[j] = v[slot][j] * c - n * s;
            high[j] = n * c + v[slot][j] * s;
        }
        store<2>(y + first, low);
        store<2>(y + first + half, high);
    }
}

struct BackwardArgs {
    const Bf16 *d_y, *x, *weight;
    const float* rstd;
    const std::int32_t* positions;
    const float *cos, *sin;
    Bf16* d_x;
    float* partial;  // (blocks, D)
    std::int64_t items, items_each;
    int heads;
    float offset;
    Layout layout;
};

__global__ void __launch_bounds__(kThreads) head_norm_rope_backward_kernel(const __grid_constant__ BackwardArgs a) {
    __shared__ float shared[kWarps][kMostHeadDim];
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int pairs = a.layout.pairs(), rotated = a.layout.rotated_pairs(), half = a.layout.half, head_dim = a.layout.head_dim;
    float sum_first[kPairs][2] = {}, sum_partner[kPairs][2] = {};
    const std::int64_t begin = blockIdx.x * a.items_each;
    const std::int64_t end = min(begin + a.items_each, a.items);
    for (std::int64_t item = begin + warp; item < end; item += kWarps) {
        const std::int64_t angle = static_cast<std::int64_t>(a.positions[item / a.heads]) * half;
        const float scale = a.rstd[item];
        const Bf16 *x = a.x + item * head_dim, *d_y = a.d_y + item * head_dim;
        float n_first[kPairs][2], n_partner[kPairs][2];  // x rstd
        float g_first[kPairs][2], g_partner[kPairs][2];  // gradient of it
        float dot = 0;
#pragma unroll
        for (int slot = 0; slot < kPairs; ++slot) {
            const int pair = slot * kWarp + lane;
            if (pair >= pairs) break;
            const int first = a.layout.first(pair);
            float low[2], high[2] = {};
            load<2>(x + first, n_first[slot]);
            load<2>(d_y + first, low);
            if (pair < rotated) {
                load<2>(x + first + half, n_partner[slot]);
                load<2>(d_y + first + half, high);
            }
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                float d = low[j], d_partner = 0;
                if (pair < rotated) {
                    const float c = a.cos[angle + first + j], s = a.sin[angle + first + j];
                    d = low[j] * c + high[j] * s;
                    d_partner = high[j] * c - low[j] * s;
                    n_partner[slot][j] *= scale;
                    sum_partner[slot][j] += d_partner * n_partner[slot][j];
                    g_partner[slot][j] = d_partner * (a.offset + __bfloat162float(a.weight[first + half + j]));
                    dot += g_partner[slot][j] * n_partner[slot][j];
                }
                n_first[slot][j] *= scale;
                sum_first[slot][j] += d * n_first[slot][j];
                g_first[slot][j] = d * (a.offset + __bfloat162float(a.weight[first + j]));
                dot += g_first[slot][j] * n_first[slot][j];
            }
        }
        const float mean = device::warp_sum(dot) / static_cast<float>(head_dim);
#pragma unroll
        for (int slot = 0; slot < kPairs; ++slot) {
            const int pair = slot * kWarp + lane;
            if (pair >= pairs) break;
            const int first = a.layout.first(pair);
#pragma unroll
            for (int j = 0; j < 2; ++j) g_first[slot][j] = scale * (g_first[slot][j] - n_first[slot][j] * mean);
            store<2>(a.d_x + item * head_dim + first, g_first[slot]);
            if (pair >= rotated) continue;
#pragma unroll
            for (int j = 0; j < 2; ++j) g_partner[slot][j] = scale * (g_partner[slot][j] - n_partner[slot][j] * mean);
            store<2>(a.d_x + item * head_dim + first + half, g_partner[slot]);
        }
    }
#pragma unroll
    for (int slot = 0; slot < kPairs; ++slot) {
        const int pair = slot * kWarp + lane;
        if (pair >= pairs) break;
        const int first = a.layout.first(pair);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            shared[warp][first + j] = sum_first[slot][j];
            if (pair < rotated) shared[warp][first + half + j] = sum_partner[slot][j];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < head_dim; i += kThreads) {
        float sum = 0;
        for (int w = 0; w < kWarps; ++w) sum += shared[w][i];
        a.partial[static_cast<std::int64_t>(blockIdx.x) * head_dim + i] = sum;
    }
}

// One warp a column: lanes add every 32nd partial, then one another's.
__global__ void add_head_partials_kernel(const float* partial, int partials, int head_dim, float* sum) {
    const int column = blockIdx.x * kWarps + threadIdx.x / kWarp;
    if (column >= head_dim) return;
    float total = 0;
    for (int i = threadIdx.x % kWarp; i < partials; i += kWarp) total += partial[static_cast<std::int64_t>(i) * head_dim + column];
    total = device::warp_sum(total);
    if (threadIdx.x % kWarp == 0) sum[column] += total;
}

Layout layout_of(const char* op, std::int64_t head_dim, const Tensor& cos) {
    const std::int64_t half = cos.row_elements();
    DFLASH_CHECK(head_dim <= kMostHeadDim && head_dim % 2 == 0 && half % 2 == 0,
                 "{}: heads of {} with {} rotary dimensions; built are even ones up to {}, rotary multiples of 4", op, head_dim, 2 * half,
                 kMostHeadDim);
    return {static_cast<int>(head_dim), static_cast<int>(half)};
}

}  // namespace

void head_norm_rope_forward(const Context& context, const HeadNormRopeForwardParams& p) {
    check_bf16("head_norm_rope_forward", {&p.x, &p.weight, &p.y});
    const std::int64_t heads = p.y.shape[1], head_dim = p.y.shape[2];
    const std::int64_t head_stride = p.x_head_stride == 0 ? head_dim : p.x_head_stride;
    const std::int64_t row_stride = p.x_row_stride == 0 ? heads * head_stride : p.x_row_stride;
    DFLASH_CHECK(head_stride % 2 == 0 && row_stride % 2 == 0, "head_norm_rope_forward: strides {} and {}, expected even ones", head_stride,
                 row_stride);
    const ForwardArgs args{.x = bf16(p.x),
                           .weight = bf16(p.weight),
                           .row_stride = row_stride,
                           .head_stride = head_stride,
                           .positions = p.positions.i32(),
                           .cos = p.cos.f32(),
                           .sin = p.sin.f32(),
                           .y = bf16(p.y),
                           .rstd = f32_or_null(p.rstd),
                           .rows = p.y.shape[0],
                           .heads = static_cast<int>(heads),
                           .eps = p.eps,
                           .offset = p.weight_offset,
                           .layout = layout_of("head_norm_rope_forward", head_dim, p.cos)};
    const std::int64_t items = args.rows * heads;
    head_norm_rope_forward_kernel<<<static_cast<unsigned>((items + kWarps - 1) / kWarps), kThreads, 0, stream_of(context)>>>(args);
    DFLASH_LAUNCH_CHECK("head_norm_rope_forward");
}

void head_norm_rope_backward(const Context& context, const HeadNormRopeBackwardParams& p) {
    check_bf16("head_norm_rope_backward", {&p.d_y, &p.x, &p.weight, &p.d_x});
    const std::int64_t heads = p.x.shape[1], head_dim = p.x.shape[2];
    const std::int64_t items = p.x.shape[0] * heads;
    const std::int64_t items_each = std::max<std::int64_t>(2 * kWarps, (items + kHeadNormPartials - 1) / kHeadNormPartials);
    const auto blocks = static_cast<int>((items + items_each - 1) / items_each);
    const BackwardArgs args{.d_y = bf16(p.d_y),
                            .x = bf16(p.x),
                            .weight = bf16(p.weight),
                            .rstd = p.rstd.f32(),
                            .positions = p.positions.i32(),
                            .cos = p.cos.f32(),
                            .sin = p.sin.f32(),
                            .d_x = bf16(p.d_x),
                            .partial = static_cast<float*>(context.workspace(static_cast<std::size_t>(blocks * head_dim) * sizeof(float))),
                            .items = items,
                            .items_each = items_each,
                            .heads = static_cast<int>(heads),
                            .offset = p.weight_offset,
                            .layout = layout_of("head_norm_rope_backward", head_dim, p.cos)};
    head_norm_rope_backward_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(context)>>>(args);
    DFLASH_LAUNCH_CHECK("head_norm_rope_backward");
    add_head_partials_kernel<<<blocks_for(head_dim, kWarps), kThreads, 0, stream_of(context)>>>(
        args.partial, blocks, static_cast<int>(head_dim), p.d_weight.f32());
    DFLASH_LAUNCH_CHECK("head_norm_rope_backward, sums");
}

}  // namespace dflash::cuda
