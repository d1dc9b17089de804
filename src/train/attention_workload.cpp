// SPDX-License-Identifier: MIT
#include "train/attention_workload.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <span>
#include <thread>

#include "base/error.h"
#include "kernels/stopwatch.h"
#include "tensor/working_dtype.h"
#include "train/step_bench.h"
#include "train/synthetic.h"

namespace dflash {
namespace {

constexpr int kWarmups = 5;
constexpr std::chrono::milliseconds kRest{400};

void check_shape(const AttentionShape& s) {
    if (s.context < 2 || s.anchors < 1 || s.anchors >= s.context || s.documents < 1 || s.context % s.documents != 0) {
        throw_bad_input("{}: {} tokens, {} anchors, {} documents: anchors must be fewer than tokens, and documents divide them", s.name,
                        s.context, s.anchors, s.documents);
    }
}

}  // namespace

// Seeds are chosen so that the load (unmasked pairs) is that of published measurements of the same shapes.
const std::vector<AttentionShape>& attention_table() {
    static const std::vector<AttentionShape> kTable = {
        {.name = "512 anchors, 8192 tokens, 1 document", .seed = 281},
        {.name = "512 anchors, 4 documents", .documents = 4, .seed = 292},
        {.name = "512 anchors, 16 documents", .documents = 16, .seed = 74},
        {.name = "256 anchors, 1 document", .anchors = 256, .seed = 210},
        {.name = "128 anchors, 1 document (2048 x 10240)", .anchors = 128, .seed = 50},
        {.name = "512 anchors, 1 document, window 2048", .window = 2048, .causal_block = true, .seed = 281},
    };
    return kTable;
}

AttentionAnchors draw_attention_anchors(const AttentionShape& shape) {
    check_shape(shape);
    std::vector<std::int32_t> rows(static_cast<std::size_t>(shape.context - 1));
    std::iota(rows.begin(), rows.end(), 1);
    std::mt19937 rng(shape.seed);
    std::shuffle(rows.begin(), rows.end(), rng);
    AttentionAnchors a;
    a.anchor.assign(rows.begin(), rows.begin() + shape.anchors);
    std::sort(a.anchor.begin(), a.anchor.end());
    const auto length = static_cast<std::int32_t>(shape.context / shape.documents);
    for (const std::int32_t anchor : a.anchor) {
        a.begin.push_back(anchor / length * length);
        for (std::int64_t slot = 0; slot < shape.block_size; ++slot) {
            std::int64_t low = a.begin.back();
            if (shape.window > 0) low = std::clamp<std::int64_t>(anchor + slot - (shape.window - 1), low, anchor);
            a.pairs += static_cast<double>(anchor - low + (shape.causal_block ? slot + 1 : shape.block_size));
        }
    }
    return a;
}

namespace {

// Names the shape that has no kernel before memory is taken for it.
const AttentionShape& checked(const Context& context, const AttentionShape& shape) {
    anchor_attention_kernel(context.device(), shape.heads, shape.kv_heads, shape.head_dim, shape.block_size);
    return shape;
}

DeviceBuffer make(const Context& context, std::int64_t rows, std::int64_t heads, std::int64_t head_dim) {
    return {context.device(), working_dtype(context.device()), {rows, heads, head_dim}};
}
DeviceBuffer random(const Context& context, std::int64_t rows, std::int64_t heads, std::int64_t head_dim, std::uint64_t seed) {
    DeviceBuffer buffer = make(context, rows, heads, head_dim);
    fill_random(context, buffer.tensor().view({rows, heads * head_dim}), seed, 1.7);  // a variance of about 1
    return buffer;
}

}  // namespace

AttentionWorkload::AttentionWorkload(const Context& context, const AttentionShape& s)
    : context_(context),
      shape_(checked(context, s)),
      anchors_(draw_attention_anchors(s)),
      q_(random(context, s.anchors * s.block_size, s.heads, s.head_dim, 1)),
      k_context_(random(context, s.context, s.kv_heads, s.head_dim, 2)),
      v_context_(random(context, s.context, s.kv_heads, s.head_dim, 3)),
      k_block_(random(context, s.anchors * s.block_size, s.kv_heads, s.head_dim, 4)),
      v_block_(random(context, s.anchors * s.block_size, s.kv_heads, s.head_dim, 5)),
      d_out_(random(context, s.anchors * s.block_size, s.heads, s.head_dim, 6)),
      out_(make(context, s.anchors * s.block_size, s.heads, s.head_dim)),
      lse_(context.device(), DType::kF32, {s.anchors * s.block_size, s.heads}),
      delta_(context.device(), DType::kF32, {s.anchors * s.block_size, s.heads}),
      d_q_(make(context, s.anchors * s.block_size, s.heads, s.head_dim)),
      d_k_context_(make(context, s.context, s.kv_heads, s.head_dim)),
      d_v_context_(make(context, s.context, s.kv_heads, s.head_dim)),
      d_k_block_(make(context, s.anchors * s.block_size, s.kv_heads, s.head_dim)),
      d_v_block_(make(context, s.anchors * s.block_size, s.kv_heads, s.head_dim)),
      begin_(context.device(), DType::kI32, {s.anchors}),
      anchor_(context.device(), DType::kI32, {s.anchors}),
      mask_{begin_, anchor_, s.anchors, s.block_size, s.window, s.causal_block},
      scale_(1.0F / std::sqrt(static_cast<float>(s.head_dim))) {
    prepare_mask();
}

void AttentionWorkload::prepare_mask() const {
    context_.upload(std::span<const std::int32_t>(anchors_.begin), begin_.tensor());
    context_.upload(std::span<const std::int32_t>(anchors_.anchor), anchor_.tensor());
}

void AttentionWorkload::forward() const {
    anchor_attention_forward(context_, {q_, k_context_, v_context_, k_block_, v_block_, mask_, scale_, out_, lse_});
}

AnchorAttentionBackwardParams AttentionWorkload::tensors() const {
    return {d_out_, q_,   k_context_, v_context_, k_block_,     v_block_,     mask_,      scale_,
            out_,   lse_, delta_,     d_q_,       d_k_context_, d_v_context_, d_k_block_, d_v_block_};
}

void AttentionWorkload::backward() const { anchor_attention_backward(context_, tensors()); }

double AttentionWorkload::forward_flop() const { return 4.0 * static_cast<double>(shape_.head_dim * shape_.heads) * anchors_.pairs; }

double median_ms_of(const Context& context, const std::function<void()>& work, int runs) {
    const bool on_gpu = context.device().type == DeviceType::kCuda;
    context.synchronize();
    if (on_gpu) std::this_thread::sleep_for(kRest);
    for (int i = 0; i < (on_gpu ? kWarmups : 1); ++i) work();
    std::vector<double> ms;
    Stopwatch watch(context);
    for (int i = 0; i < runs; ++i) {
        watch.clear();
        watch.mark();
        work();
        watch.mark();
        ms.push_back(watch.intervals().front());
    }
    return median(ms);
}

}  // namespace dflash
