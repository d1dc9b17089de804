// SPDX-License-Identifier: MIT
// The convolution before the delta rule: a thread takes neighbouring channels through a strip of rows and keeps the last inputs in registers,
// so that each input is read about once. The document of the strip's first row is found by bisection of the borders, later ones by walking.
#include "kernels/backends.h"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/launch.cuh"

namespace dflash::cuda {
namespace {

using device::Bf16;
using device::load;
using device::store;

constexpr int kThreads = 128;
constexpr int kStrip = 16;  // rows
constexpr int kMostTaps = 4;

struct ConvArgs {
    const Bf16 *x, *weight, *history;  // history null: zeros
    const std::int32_t* document_begin;
    Bf16* y;
    std::int64_t rows, channels;
    int documents;
};

// The document that holds `row`: the last one that begins there or before.
__device__ __forceinline__ int document_of(const std::int32_t* begin, int documents, std::int64_t row) {
    int low = 0, high = documents;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        (begin[middle] <= row ? low : high) = middle;
    }
    return low;
}

template <int kWidth, int kTaps>
__global__ void __launch_bounds__(kThreads) causal_conv_silu_kernel(const __grid_constant__ ConvArgs a) {
    const std::int64_t channel = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
    if (channel >= a.channels) return;
    float weight[kTaps][kWidth];  // by tap of a channel in memory: element e is channel e / kTaps, tap e % kTaps
#pragma unroll
    for (int group = 0; group < kTaps; ++group) {
        float taps[kWidth];
        load<kWidth>(a.weight + channel * kTaps + group * kWidth, taps);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) weight[(group * kWidth + i) % kTaps][(group * kWidth + i) / kTaps] = taps[i];
    }
    std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kStrip;
    const std::int64_t end = min(row + kStrip, a.rows);
    int document = document_of(a.document_begin, a.documents, row);
    float before[kTaps][kWidth] = {};  // the inputs of rows row - kTaps + 1, ..., row; the last is filled at each row
    // What stands `back` rows before the row: an input, history or nothing.
    const auto look_back = [&](int back, float(&v)[kWidth]) {
        const std::int64_t source = row - back;
        if (source >= a.document_begin[document]) {
            load<kWidth>(a.x + source * a.channels + channel, v);
        } else if (a.history != nullptr) {
            load<kWidth>(a.history + (source + kTaps - 1) * a.channels + channel, v);
        } else {
#pragma unroll
            for (int c = 0; c < kWidth; ++c) v[c] = 0;
        }
    };
#pragma unroll
    for (int back = 1; back < kTaps; ++back) look_back(back, before[kTaps - 1 - back]);
    for (; row < end; ++row) {
        if (document + 1 < a.documents && a.document_begin[document + 1] <= row) {
            do ++document;
            while (document + 1 < a.documents && a.document_begin[document + 1] <= row);
#pragma unroll
            for (int j = 0; j < kTaps - 1; ++j) {
#pragma unroll
                for (int c = 0; c < kWidth; ++c) before[j][c] = 0;
            }
        }
        load<kWidth>(a.x + row * a.channels + channel, before[kTaps - 1]);
        float sum[kWidth] = {};
#pragma unroll
        for (int j = 0; j < kTaps; ++j) {
#pragma unroll
            for (int c = 0; c < kWidth; ++c) sum[c] += weight[j][c] * before[j][c];
        }
#pragma unroll
        for (int c = 0; c < kWidth; ++c) sum[c] /= 1.0F + __expf(-sum[c]);
        store<kWidth>(a.y + row * a.channels + channel, sum);
#pragma unroll
        for (int j = 0; j < kTaps - 1; ++j) {
#pragma unroll
            for (int c = 0; c < kWidth; ++c) before[j][c] = before[j + 1][c];
        }
    }
}

// Rows of history move up by `rows`; a row's source lies below it, so rising order may work in place.
template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    conv_history_append_kernel(const Bf16* x, Bf16* history, std::int64_t rows, std::int64_t history_rows, std::int64_t channels) {
    const std::int64_t channel = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
    if (channel >= channels) return;
    for (std::int64_t row = 0; row < history_rows; ++row) {
        const std::int64_t source = row + rows;
        float v[kWidth];
        load<kWidth>(source < history_rows ? history + source * channels + channel : x + (source - history_rows) * channels + channel, v);
        store<kWidth>(history + row * channels + channel, v);
    }
}

// launch(integral_constant<int, taps>)
template <typename Launch>
void with_taps(std::int64_t taps, const Launch& launch) {
    switch (taps) {
        case 1: return launch(std::integral_constant<int, 1>{});
        case 2: return launch(std::integral_constant<int, 2>{});
        case 3: return launch(std::integral_constant<int, 3>{});
        case 4: return launch(std::integral_constant<int, kMostTaps>{});
        default: throw_cuda("causal_conv_silu: 1 to " + std::to_string(kMostTaps) + " taps are built, not " + std::to_string(taps));
    }
}

}  // namespace

void causal_conv_silu_forward(const Context& context, const CausalConvParams& p) {
    check_bf16("causal_conv_silu", {&p.x, &p.weight, &p.history, &p.y});
    const std::int64_t rows = p.x.shape[0], channels = p.x.shape[1];
    if (channels == 0) return;
    const ConvArgs args{bf16(p.x), bf16(p.weight), bf16(p.history), p.document_begin.i32(),
                        bf16(p.y), rows,           channels,        static_cast<int>(p.document_begin.elements() - 1)};
    const auto strips = static_cast<unsigned>((rows + kStrip - 1) / kStrip);
    with_width(in_vectors(channels, {&p.x, &p.weight, &p.history, &p.y}), [&](auto width) {
        constexpr int kWidth = decltype(width)::value;
        const dim3 grid(static_cast<unsigned>((channels + kThreads * kWidth - 1) / (kThreads * kWidth)), strips);
        with_taps(p.weight.shape[1], [&](auto taps) {
            causal_conv_silu_kernel<kWidth, decltype(taps)::value><<<grid, kThreads, 0, stream_of(context)>>>(args);
        });
    });
    DFLASH_LAUNCH_CHECK("causal_conv_silu");
}

void conv_history_append(const Context& context, const Tensor& x, const Tensor& history) {
    check_bf16("conv_history_append", {&x, &history});
    const std::int64_t channels = history.row_elements();
    with_width(in_vectors(channels, {&x, &history}), [&](auto width) {
        constexpr int kWidth = decltype(width)::value;
        conv_history_append_kernel<kWidth><<<blocks_for(channels, kThreads * kWidth, INT32_MAX), kThreads, 0, stream_of(context)>>>(
            bf16(x), bf16(history), x.rows(), history.rows(), channels);
    });
    DFLASH_LAUNCH_CHECK("conv_history_append");
}

}  // namespace dflash::cuda
