// SPDX-License-Identifier: MIT
// Rates of the CPU kernels at the shape of the training-step benchmark, beside the machine's own ceilings: the library's matrix product on a
// large square, and a copy of memory. Read "GFLOP/s" against Matmul2048 and "GB/s" against Copy.
#include <benchmark/benchmark.h>

#include <cstring>

#include "base/rng.h"
#include "kernels/adamw.h"
#include "kernels/anchor_attention.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cross_entropy.h"
#include "kernels/head_norm_rope.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"
#include "tensor/buffer.h"

namespace dflash {
namespace {

constexpr std::int64_t kTokens = 1024, kHidden = 1024, kFeedForward = 3584, kWords = 32000;
constexpr std::int64_t kHeads = 16, kKvHeads = 8, kHeadDim = 64, kAnchors = 64, kWidth = 16;

HostBuffer noise(const Shape& shape, std::uint64_t seed) {
    HostBuffer buffer(DType::kF32, shape);
    Philox rng(seed, 1);
    float* p = buffer.tensor().f32();
    for (std::int64_t i = 0; i < shape.elements(); ++i) p[i] = static_cast<float>(rng.next_double()) - 0.5F;
    return buffer;
}

void set_flops(benchmark::State& state, double flops_each) {
    state.counters["GFLOP/s"] = benchmark::Counter(flops_each * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}
void set_bytes(benchmark::State& state, double bytes_each) {
    state.counters["GB/s"] = benchmark::Counter(bytes_each * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void Copy(benchmark::State& state) {
    const std::int64_t bytes = std::int64_t{256} << 20;
    const HostBuffer x(DType::kU8, {bytes}), y(DType::kU8, {bytes});
    for (auto _ : state) {
        cpu::parallel_ranges(bytes, 1, [&](std::int64_t begin, std::int64_t end) {
            std::memcpy(y.tensor().ptr<char>() + begin, x.tensor().ptr<char>() + begin, static_cast<std::size_t>(end - begin));
        });
    }
    set_bytes(state, 2.0 * static_cast<double>(bytes));
}

enum Direction { kForward, kBackwardInput, kBackwardWeight };

void Linear(benchmark::State& state, Direction direction, std::int64_t rows, std::int64_t in, std::int64_t out) {
    const Context context;
    const HostBuffer x = noise({rows, in}, 1), w = noise({out, in}, 2), y = noise({rows, out}, 3);
    for (auto _ : state) {
        if (direction == kForward) linear_forward(context, {x, w, y});
        if (direction == kBackwardInput) linear_backward_input(context, {y, w, x});
        if (direction == kBackwardWeight) linear_backward_weight(context, {y, x, w});
    }
    set_flops(state, 2.0 * static_cast<double>(rows * in * out));
}

struct Attention {
    Attention() {
        for (std::int64_t a = 0; a < kAnchors; ++a) {
            begin.tensor().i32()[a] = 0;
            anchor.tensor().i32()[a] = static_cast<std::int32_t>((2 * a + 1) * kTokens / (2 * kAnchors));
            context_pairs += static_cast<double>(kWidth) * anchor.tensor().i32()[a];
        }
        context_pairs += static_cast<double>(kAnchors * kWidth * kWidth);
    }
    // Multiply-adds of one matrix product over all visible (query, key) pairs and heads, as FLOP.
    double product_flops() const { return 2.0 * context_pairs * static_cast<double>(kHeads * kHeadDim); }
    AnchorAttentionMask mask() const { return {begin, anchor, kAnchors, kWidth, 0, false}; }

    double context_pairs = 0;
    HostBuffer begin{DType::kI32, {kAnchors}}, anchor{DType::kI32, {kAnchors}};
    Shape q_shape{kAnchors * kWidth, kHeads, kHeadDim}, kv_shape{kTokens, kKvHeads, kHeadDim},
        own_shape{kAnchors * kWidth, kKvHeads, kHeadDim};
    HostBuffer q = noise(q_shape, 1), k = noise(kv_shape, 2), v = noise(kv_shape, 3), own_k = noise(own_shape, 4),
               own_v = noise(own_shape, 5);
    HostBuffer out = noise(q_shape, 6), d_out = noise(q_shape, 7), d_q = noise(q_shape, 8), d_k = noise(kv_shape, 9),
               d_v = noise(kv_shape, 10);
    HostBuffer d_own_k = noise(own_shape, 11), d_own_v = noise(own_shape, 12);
    HostBuffer lse = noise({kAnchors * kWidth, kHeads}, 13), delta = noise({kAnchors * kWidth, kHeads}, 14);
};

void AttentionForward(benchmark::State& state) {
    const Context context;
    const Attention a;
    for (auto _ : state) anchor_attention_forward(context, {a.q, a.k, a.v, a.own_k, a.own_v, a.mask(), 0.125F, a.out, a.lse});
    set_flops(state, 2 * a.product_flops());
}

void AttentionBackward(benchmark::State& state) {
    const Context context;
    const Attention a;
    anchor_attention_forward(context, {a.q, a.k, a.v, a.own_k, a.own_v, a.mask(), 0.125F, a.out, a.lse});
    for (auto _ : state) {
        anchor_attention_backward(context, {a.d_out, a.q, a.k, a.v, a.own_k, a.own_v, a.mask(), 0.125F, a.out, a.lse, a.delta, a.d_q, a.d_k,
                                            a.d_v, a.d_own_k, a.d_own_v});
    }
    set_flops(state, 5 * a.product_flops());
}

void CrossEntropy(benchmark::State& state, bool teacher) {
    const Context context;
    const std::int64_t rows = 256;
    const HostBuffer logits = noise({rows, kWords}, 1), teacher_logits = noise({rows, kWords}, 2), labels(DType::kI32, {rows}),
                     loss(DType::kF32, {rows}), prob(DType::kF32, {rows}), correct(DType::kI32, {rows});
    for (auto _ : state) {
        cross_entropy_forward_backward(context, {logits, teacher ? teacher_logits.tensor() : Tensor{}, labels, loss, prob, correct});
    }
    set_bytes(state, (teacher ? 4.0 : 2.0) * static_cast<double>(rows * kWords) * sizeof(float));
}

void AdamW(benchmark::State& state) {
    const Context context;
    std::vector<HostBuffer> buffers;
    std::vector<AdamWTensor> tensors;
    const std::int64_t elements = kHidden * kFeedForward;
    for (std::uint64_t i = 0; i < 4; ++i) {
        for (std::uint64_t j = 0; j < 4; ++j) buffers.push_back(noise({elements}, 4 * i + j));
    }
    for (std::size_t i = 0; i < 4; ++i)
        tensors.push_back(
            {.weight = buffers[4 * i], .remainder = {}, .gradient = buffers[4 * i + 1], .m = buffers[4 * i + 2], .v = buffers[4 * i + 3]});
    const HostBuffer grad_scale(DType::kF64, {1});
    *grad_scale.tensor().f64() = 1.0;
    std::int64_t step = 1;
    for (auto _ : state) adamw_step(context, {.tensors = &tensors, .lr = 1e-3F, .step = step++, .grad_scale = grad_scale});
    set_bytes(state, 28.0 * 4.0 * static_cast<double>(elements));
}

void RmsNormForward(benchmark::State& state) {
    const Context context;
    const HostBuffer x = noise({kTokens, kHidden}, 1), w = noise({kHidden}, 2), y = noise({kTokens, kHidden}, 3),
                     rstd(DType::kF32, {kTokens});
    for (auto _ : state) rms_norm_forward(context, {.x = x, .weight = w, .residual = {}, .y = y, .rstd = rstd});
    set_bytes(state, 8.0 * static_cast<double>(kTokens * kHidden));
}

void RmsNormBackward(benchmark::State& state) {
    const Context context;
    const HostBuffer x = noise({kTokens, kHidden}, 1), w = noise({kHidden}, 2), d_y = noise({kTokens, kHidden}, 3),
                     d_x = noise({kTokens, kHidden}, 4), d_w = noise({kHidden}, 5), rstd = noise({kTokens}, 6);
    for (auto _ : state) rms_norm_backward(context, {.d_y = d_y, .x = x, .weight = w, .rstd = rstd, .d_x = d_x, .d_weight = d_w});
    set_bytes(state, 24.0 * static_cast<double>(kTokens * kHidden));
}

struct Rope {
    HostBuffer x = noise({kTokens, kHeads, kHeadDim}, 1), w = noise({kHeadDim}, 2), y = noise({kTokens, kHeads, kHeadDim}, 3),
               d_x = noise({kTokens, kHeads, kHeadDim}, 7), rstd = noise({kTokens, kHeads}, 4), angles = noise({kTokens, kHeadDim / 2}, 5),
               positions{DType::kI32, {kTokens}}, d_w = noise({kHeadDim}, 6);
};
void HeadNormRopeForward(benchmark::State& state) {
    const Context context;
    const Rope r;
    for (auto _ : state) {
        head_norm_rope_forward(
            context, {.x = r.x, .weight = r.w, .positions = r.positions, .cos = r.angles, .sin = r.angles, .y = r.y, .rstd = r.rstd});
    }
    set_bytes(state, 8.0 * static_cast<double>(kTokens * kHeads * kHeadDim));
}
void HeadNormRopeBackward(benchmark::State& state) {
    const Context context;
    const Rope r;
    for (auto _ : state) {
        head_norm_rope_backward(context, {.d_y = r.y,
                                          .x = r.x,
                                          .weight = r.w,
                                          .rstd = r.rstd,
                                          .positions = r.positions,
                                          .cos = r.angles,
                                          .sin = r.angles,
                                          .d_x = r.d_x,
                                          .d_weight = r.d_w});
    }
    set_bytes(state, 12.0 * static_cast<double>(kTokens * kHeads * kHeadDim));
}

void SwigluForward(benchmark::State& state) {
    const Context context;
    const HostBuffer gate = noise({kTokens, kFeedForward}, 1), up = noise({kTokens, kFeedForward}, 2),
                     y = noise({kTokens, kFeedForward}, 3);
    for (auto _ : state) swiglu_forward(context, {gate, up, y});
    set_bytes(state, 12.0 * static_cast<double>(kTokens * kFeedForward));
}
void SwigluBackward(benchmark::State& state) {
    const Context context;
    const HostBuffer gate = noise({kTokens, kFeedForward}, 1), up = noise({kTokens, kFeedForward}, 2),
                     d_y = noise({kTokens, kFeedForward}, 3), d_gate = noise({kTokens, kFeedForward}, 4),
                     d_up = noise({kTokens, kFeedForward}, 5);
    for (auto _ : state) swiglu_backward(context, {d_y, gate, up, d_gate, d_up, {}});
    set_bytes(state, 20.0 * static_cast<double>(kTokens * kFeedForward));
}

BENCHMARK(Copy)->UseRealTime();
BENCHMARK_CAPTURE(Linear, Matmul2048, kForward, 2048, 2048, 2048)->UseRealTime();
BENCHMARK_CAPTURE(Linear, up_forward, kForward, kTokens, kHidden, kFeedForward)->UseRealTime();
BENCHMARK_CAPTURE(Linear, up_backward_input, kBackwardInput, kTokens, kHidden, kFeedForward)->UseRealTime();
BENCHMARK_CAPTURE(Linear, up_backward_weight, kBackwardWeight, kTokens, kHidden, kFeedForward)->UseRealTime();
BENCHMARK_CAPTURE(Linear, down_forward, kForward, kTokens, kFeedForward, kHidden)->UseRealTime();
BENCHMARK_CAPTURE(Linear, down_backward_input, kBackwardInput, kTokens, kFeedForward, kHidden)->UseRealTime();
BENCHMARK_CAPTURE(Linear, down_backward_weight, kBackwardWeight, kTokens, kFeedForward, kHidden)->UseRealTime();
BENCHMARK_CAPTURE(Linear, square_forward, kForward, kTokens, kHidden, kHidden)->UseRealTime();
BENCHMARK_CAPTURE(Linear, rows_1000_forward, kForward, 1000, kHidden, kHidden)->UseRealTime();
BENCHMARK_CAPTURE(Linear, head_forward, kForward, 256, kHidden, kWords)->UseRealTime();
BENCHMARK_CAPTURE(Linear, head_backward_input, kBackwardInput, 256, kHidden, kWords)->UseRealTime();
BENCHMARK_CAPTURE(Linear, decode_16_rows, kForward, 16, kHidden, kFeedForward)->UseRealTime();
BENCHMARK(AttentionForward)->UseRealTime();
BENCHMARK(AttentionBackward)->UseRealTime();
BENCHMARK_CAPTURE(CrossEntropy, labels, false)->UseRealTime();
BENCHMARK_CAPTURE(CrossEntropy, teacher, true)->UseRealTime();
BENCHMARK(AdamW)->UseRealTime();
BENCHMARK(RmsNormForward)->UseRealTime();
BENCHMARK(RmsNormBackward)->UseRealTime();
BENCHMARK(HeadNormRopeForward)->UseRealTime();
BENCHMARK(HeadNormRopeBackward)->UseRealTime();
BENCHMARK(SwigluForward)->UseRealTime();
BENCHMARK(SwigluBackward)->UseRealTime();

}  // namespace
}  // namespace dflash

BENCHMARK_MAIN();
