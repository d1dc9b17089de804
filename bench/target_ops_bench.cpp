// SPDX-License-Identifier: MIT
// The target's own ops on a GPU, a layer of each at the sizes of Qwen3.6-27B (and the attention of Qwen3-8B): 8,192 packed tokens as one document
// and as eight, and decoding with 16 rows. One line an op: median, minimum and maximum of the runs, and the rate that its bound is counted in.
#include <fmt/core.h>

#include "gpu_timing.h"
#include "kernels/causal_attention.h"
#include "kernels/delta_rule.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"
#include "tensor/buffer.h"

namespace dflash {
namespace {

constexpr std::int64_t kTokens = 8192, kStepRows = 16;
constexpr std::int64_t kKeyHeads = 16, kValueHeads = 48, kDeltaDim = 128, kChannels = (2 * kKeyHeads + kValueHeads) * kDeltaDim, kTaps = 4;
constexpr int kRuns = 9;
constexpr double kLoadMs = 300;

class Bench {
public:
    void packed_row_ops();
    void delta_rule(std::int64_t documents);
    void delta_step();
    void attention(const char* name, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t documents);
    void attention_step(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t cache, std::int64_t keys);

private:
    Tensor bf16(const Shape& shape, float scale = 1.0F) {
        owned_.emplace_back(device_, DType::kBF16, shape);
        fill_bf16(context_, owned_.back(), scale);
        return owned_.back();
    }
    Tensor f32(const Shape& shape) { return owned_.emplace_back(device_, DType::kF32, shape); }
    Tensor i32(const std::vector<std::int32_t>& values) {
        owned_.emplace_back(device_, DType::kI32, Shape{static_cast<std::int64_t>(values.size())});
        context_.upload(values.data(), owned_.back());
        return owned_.back();
    }
    Tensor borders(std::int64_t rows, std::int64_t documents) {
        std::vector<std::int32_t> values;
        for (std::int64_t i = 0; i <= documents; ++i) values.push_back(static_cast<std::int32_t>(rows * i / documents));
        return i32(values);
    }
    DeltaRuleParams rule(std::int64_t rows, std::int64_t documents) {
        DeltaRuleParams p;
        p.qkv = bf16({rows, kChannels}), p.b = bf16({rows, kValueHeads}), p.a = bf16({rows, kValueHeads});
        p.a_log = f32({kValueHeads}), p.dt_bias = f32({kValueHeads}), p.out = bf16({rows, kValueHeads, kDeltaDim});
        p.key_heads = kKeyHeads, p.value_heads = kValueHeads, p.key_dim = p.value_dim = kDeltaDim;
        p.document_begin = borders(rows, documents);
        return p;
    }
    // `amount` of the unit (1e12 of something a second, or 1e9) that one run takes.
    void report(const std::string& what, double amount, const char* unit, const std::function<void()>& work) {
        const std::vector<double> ms = timed_ms(context_, work, kRuns, kLoadMs);
        const double median = ms[kRuns / 2];
        fmt::print("{:<58} {:8.4f} ms (min {:.4f}, max {:.4f})  {:7.2f} {}\n", what, median, ms.front(), ms.back(), amount / median / 1e9,
                   unit);
        context_.synchronize();
        owned_.clear();
    }

    Device device_{DeviceType::kCuda, 0};
    Context context_{device_};
    std::vector<DeviceBuffer> owned_;
};

void Bench::packed_row_ops() {
    const double values = static_cast<double>(kTokens * kValueHeads * kDeltaDim);
    {
        const CausalConvParams p{bf16({kTokens, kChannels}), bf16({kChannels, kTaps}), borders(kTokens, 8), {}, bf16({kTokens, kChannels})};
        report("causal convolution, 10,240 channels", 4.0 * static_cast<double>(kTokens * kChannels), "TB/s",
               [&] { causal_conv_silu_forward(context_, p); });
    }
    {
        const Shape rows{kTokens * kValueHeads, kDeltaDim};
        const GatedRmsNormParams p{bf16(rows), bf16(rows), f32({kDeltaDim}), 1e-6F, false, bf16(rows)};
        report("gated norm, 48 heads of 128", 6.0 * values, "TB/s", [&] { gated_rms_norm_forward(context_, p); });
    }
    {
        const std::int64_t heads = 24, head_dim = 256;
        const SigmoidGateParams p{bf16({kTokens, heads, 2 * head_dim}), 2 * heads * head_dim, 2 * head_dim,
                                  bf16({kTokens, heads, head_dim})};
        report("sigmoid gate, 24 heads of 256", 6.0 * static_cast<double>(kTokens * heads * head_dim), "TB/s",
               [&] { sigmoid_gate_forward(context_, p); });
    }
}

void Bench::delta_rule(std::int64_t documents) {
    const DeltaRuleParams p = rule(kTokens, documents);
    // a head's products of a chunk of 64: K K^T and Q K^T once, K S, Q S, K^T N, T R, P N
    const double chunk = 2.0 * 64 * kDeltaDim * (2 * 64 + 3 * kDeltaDim + 2 * 64);
    report(fmt::format("delta rule in chunks, {} documents", documents), chunk * static_cast<double>(kTokens / 64 * kValueHeads), "TFLOP/s",
           [&] { delta_rule_chunk_forward(context_, p); });
}

void Bench::delta_step() {
    DeltaRuleParams p = rule(kStepRows, 1);
    p.state = f32({kValueHeads, kDeltaDim, kDeltaDim});
    report("delta rule token by token, 16 rows", 2.0 * static_cast<double>(p.state.bytes()), "TB/s",
           [&] { delta_rule_recurrent_forward(context_, p); });
}

void Bench::attention(const char* name, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t documents) {
    std::vector<std::int32_t> begin, end;
    double pairs = 0;
    const std::int64_t length = kTokens / documents;
    for (std::int64_t row = 0; row < kTokens; ++row) {
        begin.push_back(static_cast<std::int32_t>(row / length * length));
        end.push_back(static_cast<std::int32_t>(row) + 1);
        pairs += end.back() - begin.back();
    }
    const CausalAttentionParams p{bf16({kTokens, heads, head_dim}),
                                  bf16({kTokens, kv_heads, head_dim}),
                                  bf16({kTokens, kv_heads, head_dim}),
                                  i32(begin),
                                  i32(end),
                                  1.0F / 16,
                                  bf16({kTokens, heads, head_dim})};
    report(fmt::format("attention of {}, {} documents", name, documents), 4.0 * pairs * static_cast<double>(heads * head_dim), "TFLOP/s",
           [&] { causal_attention_forward(context_, p); });
}

void Bench::attention_step(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t cache, std::int64_t keys) {
    const Tensor q = bf16({kStepRows, heads, head_dim}), k = bf16({cache, kv_heads, head_dim}), v = bf16({cache, kv_heads, head_dim}),
                 out = bf16({kStepRows, heads, head_dim});
    std::vector<std::int32_t> end;
    for (std::int64_t row = 0; row < kStepRows; ++row) end.push_back(static_cast<std::int32_t>(keys + row));
    const CausalAttentionParams p{q, k, v, i32(std::vector<std::int32_t>(kStepRows, 0)), i32(end), 1.0F / 16, out};
    report(fmt::format("attention of a step, 16 rows over {} keys (cache {})", keys, cache),
           4.0 * static_cast<double>(keys * kv_heads * head_dim), "TB/s", [&] { causal_attention_forward(context_, p); });
}

void run() {
    Bench bench;
    bench.packed_row_ops();
    for (const std::int64_t documents : {1, 8}) bench.delta_rule(documents);
    bench.delta_step();
    for (const std::int64_t documents : {1, 8}) bench.attention("Qwen3.6-27B, 24/4 heads of 256", 24, 4, 256, documents);
    for (const std::int64_t documents : {1, 8}) bench.attention("Qwen3-8B, 32/8 heads of 128", 32, 8, 128, documents);
    for (const std::int64_t keys : {1000, 8000, 32000}) bench.attention_step(24, 4, 256, keys + 200, keys);
}

}  // namespace
}  // namespace dflash

int main() {
    if (dflash::cuda::device_count() == 0) {
        fmt::print("target_ops_bench: no GPU here\n");
        return 2;
    }
    dflash::run();
}
