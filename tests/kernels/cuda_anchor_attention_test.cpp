// SPDX-License-Identifier: MIT
// The fused CUDA kernels against the double reference: every case on each back end that the device runs. The bound is what plain bf16
// attention loses: the same computation in double with the weights, their gradients and the results rounded to bf16 once.
// All memory that must not matter is NaN: outputs before the call, context rows that no block sees, and everything of dead blocks.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/rng.h"
#include "kernels/cuda/anchor_attention_launch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/ref/anchor_attention.h"
#include "support/close.h"

namespace dflash::testing {
namespace {

using cuda::AttentionBackend;
using cuda::AttentionKernel;

// The kernels by tile, of forward and backward at once.
constexpr AttentionKernel kHopper{AttentionBackend::kHopper}, kPortable{AttentionBackend::kPortable};
constexpr AttentionKernel kPortableSmall{AttentionBackend::kPortable, 1};
using Inputs = ref::AnchorAttentionInputs<double>;

constexpr double kTimesPlainBf16 = 2.0;  // the largest error allowed, in errors of plain bf16 attention

struct Case {
    std::string name;
    std::vector<int> documents = {};  // lengths; their sum is the context
    std::vector<int> anchors = {};    // rows; empty: random_anchors of them, at random
    int random_anchors = 0;
    int dead = 0;  // dead blocks after the live ones
    int width = 16, heads = 8, kv_heads = 2, head_dim = 128, window = 0;
    bool causal = false, sorted = true;
    int multiprocessors = 0;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class DeviceBytes {
public:
    explicit DeviceBytes(std::size_t bytes) : bytes_(bytes) { DFLASH_CUDA(cudaMalloc(&data_, std::max<std::size_t>(bytes, 16))); }
    ~DeviceBytes() { cudaFree(data_); }
    DeviceBytes(const DeviceBytes&) = delete;
    DeviceBytes& operator=(const DeviceBytes&) = delete;
    void* data() const { return data_; }
    void poison() const { DFLASH_CUDA(cudaMemset(data_, 0xff, std::max<std::size_t>(bytes_, 16))); }  // NaN in bf16 and fp32
    template <typename T>
    void upload(const std::vector<T>& values) const {
        DFLASH_CUDA(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    template <typename T>
    std::vector<T> download() const {
        std::vector<T> values(bytes_ / sizeof(T));
        DFLASH_CUDA(cudaMemcpy(values.data(), data_, bytes_, cudaMemcpyDeviceToHost));
        return values;
    }

private:
    void* data_ = nullptr;
    std::size_t bytes_;
};

double rounded(double value) { return bf16_to_float(float_to_bf16(static_cast<float>(value))); }

std::vector<double> random_bf16(std::size_t count, std::uint64_t seed) {
    Philox rng(seed, 3);
    std::vector<double> values(count);
    for (double& v : values) v = rounded(rng.next_normal());
    return values;
}

std::vector<std::uint16_t> to_bf16(const std::vector<double>& values) {
    std::vector<std::uint16_t> bits(values.size());
    std::transform(values.begin(), values.end(), bits.begin(), [](double v) { return float_to_bf16(static_cast<float>(v)); });
    return bits;
}

struct Problem {
    ref::AnchorAttentionShape shape;
    Inputs in;
    std::vector<double> d_out;
    double scale = 0;
};

ref::AnchorAttentionShape make_shape(const Case& c) {
    ref::AnchorAttentionShape s;
    s.context = std::accumulate(c.documents.begin(), c.documents.end(), 0);
    std::vector<int> anchors = c.anchors;
    if (anchors.empty()) {
        Philox rng(c.name.size() + static_cast<std::size_t>(s.context), 5);
        for (int i = 0; i < c.random_anchors; ++i)
            anchors.push_back(static_cast<int>(rng.next_below(static_cast<std::uint64_t>(s.context))));
    }
    if (c.sorted) std::sort(anchors.begin(), anchors.end());
    for (const int anchor : anchors) {
        int begin = 0, end = 0;
        for (const int length : c.documents) {
            begin = end;
            end += length;
            if (anchor < end) break;
        }
        s.anchor.push_back(anchor);
        s.begin.push_back(begin);
    }
    s.live = static_cast<std::int64_t>(anchors.size());
    s.blocks = s.live + c.dead;
    s.anchor.resize(static_cast<std::size_t>(s.blocks), 1 << 30);  // a dead block's integers mean nothing
    s.begin.resize(static_cast<std::size_t>(s.blocks), -7);
    s.width = c.width;
    s.heads = c.heads;
    s.kv_heads = c.kv_heads;
    s.head_dim = c.head_dim;
    s.window = c.window;
    s.causal_block = c.causal;
    return s;
}

Problem make_case(const Case& c) {
    Problem p;
    p.shape = make_shape(c);
    const ref::AnchorAttentionShape& s = p.shape;
    const auto queries = static_cast<std::size_t>(s.blocks * s.width * s.heads * s.head_dim);
    const auto keys = static_cast<std::size_t>(s.blocks * s.width * s.kv_heads * s.head_dim);
    const auto context = static_cast<std::size_t>(s.context * s.kv_heads * s.head_dim);
    p.in = {random_bf16(queries, 1), random_bf16(context, 2), random_bf16(context, 3), random_bf16(keys, 4), random_bf16(keys, 5)};
    p.d_out = random_bf16(queries, 6);
    p.scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim));

    const double nan = std::nan("");
    for (std::int64_t row = 0; row < s.context; ++row) {
        bool seen = false;
        for (std::int64_t b = 0; b < s.live && !seen; ++b) seen = s.visible(b, 0, row);  // slot 0 sees furthest back
        if (seen) continue;
        const auto first = row * s.kv_heads * s.head_dim;
        std::fill_n(p.in.k_context.begin() + first, s.kv_heads * s.head_dim, nan);
        std::fill_n(p.in.v_context.begin() + first, s.kv_heads * s.head_dim, nan);
    }
    for (std::vector<double>* tensor : {&p.in.q, &p.in.k_block, &p.in.v_block, &p.d_out}) {
        const auto per_token = static_cast<std::int64_t>(tensor->size()) / std::max<std::int64_t>(s.blocks * s.width, 1);
        std::fill(tensor->begin() + s.live * s.width * per_token, tensor->end(), nan);
    }
    return p;
}

struct Results {
    std::vector<double> out, lse;
    Inputs d_in;
};

Results reference(Problem& p) {
    Results r;
    ref::anchor_attention_forward(p.shape, p.in, p.scale, r.out, r.lse);
    ref::anchor_attention_backward(p.shape, p.in, p.scale, p.d_out, r.d_in);
    return r;
}

// Plain bf16 attention: double everywhere but for one rounding of the weights, of the scores' gradients and of each result.
Results plain_bf16(Problem& p) {
    const ref::AnchorAttentionShape& s = p.shape;
    Results r;
    ref::anchor_attention_forward(s, p.in, p.scale, r.out, r.lse);
    const std::vector<double> exact_out = r.out;
    std::fill(r.out.begin(), r.out.end(), 0.0);
    for (auto [to, from] : {std::pair{&r.d_in.q, &p.in.q},
                            {&r.d_in.k_context, &p.in.k_context},
                            {&r.d_in.v_context, &p.in.v_context},
                            {&r.d_in.k_block, &p.in.k_block},
                            {&r.d_in.v_block, &p.in.v_block}}) {
        to->assign(from->size(), 0.0);
    }
    std::vector<double> weights;
    for (std::int64_t row = 0; row < s.live * s.width; ++row) {
        for (std::int64_t head = 0; head < s.heads; ++head) {
            const std::int64_t block = row / s.width;
            const std::int64_t kv_head = head / (s.heads / s.kv_heads);
            ref::anchor_attention_weights(s, p.in, p.scale, block, row % s.width, head, weights);
            const std::int64_t at = (row * s.heads + head) * s.head_dim;
            double delta = 0;
            for (std::int64_t d = 0; d < s.head_dim; ++d) delta += p.d_out[at + d] * rounded(exact_out[at + d]);
            for (std::int64_t key = 0; key < s.context + s.width; ++key) {
                if (!s.visible(block, row % s.width, key)) continue;
                const double* k = Inputs::row(s, p.in.k_context, p.in.k_block, block, key, kv_head);
                const double* v = Inputs::row(s, p.in.v_context, p.in.v_block, block, key, kv_head);
                double* d_k = Inputs::row(s, r.d_in.k_context, r.d_in.k_block, block, key, kv_head);
                double* d_v = Inputs::row(s, r.d_in.v_context, r.d_in.v_block, block, key, kv_head);
                const double w = weights[static_cast<std::size_t>(key)];
                double d_weight = 0;
                for (std::int64_t d = 0; d < s.head_dim; ++d) d_weight += p.d_out[at + d] * v[d];
                const double d_score = rounded(w * (d_weight - delta));
                for (std::int64_t d = 0; d < s.head_dim; ++d) {
                    r.out[at + d] += rounded(w) * v[d];
                    r.d_in.q[at + d] += d_score * k[d] * p.scale;
                    d_k[d] += d_score * p.in.q[at + d] * p.scale;
                    d_v[d] += rounded(w) * p.d_out[at + d];
                }
            }
        }
    }
    for (std::vector<double>* tensor : {&r.out, &r.d_in.q, &r.d_in.k_context, &r.d_in.v_context, &r.d_in.k_block, &r.d_in.v_block}) {
        for (double& v : *tensor) v = rounded(v);
    }
    return r;
}

// Runs forward and backward on the device; results stay there as raw bits, so that two runs can be compared exactly.
class DeviceRun {
public:
    DeviceRun(const Problem& p, const AttentionKernel& kernel, int multiprocessors)
        : q_(2 * p.in.q.size()),
          kc_(2 * p.in.k_context.size()),
          vc_(2 * p.in.v_context.size()),
          kb_(2 * p.in.k_block.size()),
          vb_(2 * p.in.v_block.size()),
          d_out_(2 * p.in.q.size()),
          begin_(4 * p.shape.begin.size()),
          anchor_(4 * p.shape.anchor.size()),
          out_(2 * p.in.q.size()),
          lse_(4 * p.in.q.size() / static_cast<std::size_t>(p.shape.head_dim)),
          delta_(4 * p.in.q.size() / static_cast<std::size_t>(p.shape.head_dim)),
          dq_(2 * p.in.q.size()),
          dkc_(2 * p.in.k_context.size()),
          dvc_(2 * p.in.v_context.size()),
          dkb_(2 * p.in.k_block.size()),
          dvb_(2 * p.in.v_block.size()) {
        q_.upload(to_bf16(p.in.q));
        kc_.upload(to_bf16(p.in.k_context));
        vc_.upload(to_bf16(p.in.v_context));
        kb_.upload(to_bf16(p.in.k_block));
        vb_.upload(to_bf16(p.in.v_block));
        d_out_.upload(to_bf16(p.d_out));
        begin_.upload(p.shape.begin);
        anchor_.upload(p.shape.anchor);
        for (const DeviceBytes* output : outputs()) output->poison();
        run(p, kernel, multiprocessors);
    }
    std::vector<const DeviceBytes*> outputs() const { return {&out_, &lse_, &delta_, &dq_, &dkc_, &dvc_, &dkb_, &dvb_}; }
    Results results() const {
        Results r;
        r.out = floats(out_);
        for (const float v : lse_.download<float>()) r.lse.push_back(v);
        r.d_in = {floats(dq_), floats(dkc_), floats(dvc_), floats(dkb_), floats(dvb_)};
        return r;
    }

private:
    static std::vector<double> floats(const DeviceBytes& bytes) {
        std::vector<double> values;
        for (const std::uint16_t bits : bytes.download<std::uint16_t>()) values.push_back(bf16_to_float(bits));
        return values;
    }
    void run(const Problem& p, const AttentionKernel& kernel, int multiprocessors) const {
        const ref::AnchorAttentionShape& s = p.shape;
        const Device device{DeviceType::kCuda, 0};
        const Shape query{s.blocks * s.width, s.heads, s.head_dim};
        const Shape key{s.blocks * s.width, s.kv_heads, s.head_dim};
        const Shape context{s.context, s.kv_heads, s.head_dim};
        const auto tensor = [&](const DeviceBytes& b, DType dtype, const Shape& shape) { return Tensor{b.data(), dtype, shape, device}; };
        const auto bf16 = [&](const DeviceBytes& b, const Shape& shape) { return tensor(b, DType::kBF16, shape); };
        const AnchorAttentionMask mask{
            tensor(begin_, DType::kI32, {s.blocks}), tensor(anchor_, DType::kI32, {s.blocks}), s.live, s.width, s.window, s.causal_block};
        const Tensor lse = tensor(lse_, DType::kF32, {s.blocks * s.width, s.heads});
        const Tensor delta = tensor(delta_, DType::kF32, {s.blocks * s.width, s.heads});
        const auto scale = static_cast<float>(p.scale);
        const Stream stream{device, nullptr};
        cuda::launch_anchor_attention_forward(
            stream,
            {bf16(q_, query), bf16(kc_, context), bf16(vc_, context), bf16(kb_, key), bf16(vb_, key), mask, scale, bf16(out_, query), lse},
            kernel, multiprocessors);
        cuda::launch_anchor_attention_backward(
            stream,
            {bf16(d_out_, query), bf16(q_, query), bf16(kc_, context), bf16(vc_, context), bf16(kb_, key), bf16(vb_, key), mask, scale,
             bf16(out_, query), lse, delta, bf16(dq_, query), bf16(dkc_, context), bf16(dvc_, context), bf16(dkb_, key), bf16(dvb_, key)},
            kernel, multiprocessors);
        DFLASH_CUDA(cudaDeviceSynchronize());
    }

    DeviceBytes q_, kc_, vc_, kb_, vb_, d_out_, begin_, anchor_, out_, lse_, delta_, dq_, dkc_, dvc_, dkb_, dvb_;
};

// got within kTimesPlainBf16 errors of plain bf16 attention; where the reference is zero throughout, got is.
void expect_like_plain(const std::vector<double>& got, const std::vector<double>& plain, const std::vector<double>& expected,
                       const char* name) {
    if (expected.empty()) return;
    const auto span = [](const std::vector<double>& v) { return std::span<const double>(v); };
    const double error = relative_rms(span(got), span(expected));
    const double bound = kTimesPlainBf16 * relative_rms(span(plain), span(expected));
    EXPECT_LE(error, bound) << name << ": relative RMS " << error << " against " << bound / kTimesPlainBf16 << " of plain bf16";
}

void expect_zero_tail(const std::vector<double>& values, std::int64_t live_tokens, std::int64_t tokens, const char* name) {
    if (tokens == 0) return;
    const auto per_token = static_cast<std::int64_t>(values.size()) / tokens;
    EXPECT_TRUE(std::all_of(values.begin() + live_tokens * per_token, values.end(), [](double v) { return v == 0.0; }))
        << name << " of dead blocks";
}

std::vector<Case> cases() {
    return {
        {.name = "hot_shape", .documents = {700}, .random_anchors = 24, .heads = 8, .kv_heads = 2},
        {.name = "four_documents", .documents = {200, 1, 333, 150}, .random_anchors = 31},
        {.name = "boundaries", .documents = {400}, .anchors = {0, 1, 95, 96, 97, 111, 112, 113, 127, 128, 129, 255, 256, 399}},
        {.name = "same_anchor", .documents = {130}, .anchors = {77, 77, 77, 77, 77}},
        {.name = "document_starts", .documents = {64, 64, 1, 100}, .anchors = {0, 64, 128, 129, 228}},
        {.name = "one_block", .documents = {50}, .anchors = {33}, .heads = 4, .kv_heads = 1},
        {.name = "no_live_block", .documents = {40}, .dead = 3},
        {.name = "no_context", .documents = {}, .dead = 2},
        {.name = "dead_blocks", .documents = {300}, .random_anchors = 5, .dead = 6},
        {.name = "unsorted", .documents = {300, 200}, .anchors = {450, 10, 299, 120, 301, 7, 480}, .sorted = false},
        {.name = "window", .documents = {500, 220}, .random_anchors = 20, .window = 100},
        {.name = "window_of_one_block", .documents = {600}, .random_anchors = 9, .window = 16},
        {.name = "window_causal", .documents = {500}, .random_anchors = 17, .dead = 2, .window = 129, .causal = true},
        {.name = "causal", .documents = {260}, .random_anchors = 12, .causal = true},
        {.name = "head_dim_64", .documents = {300, 77}, .random_anchors = 15, .head_dim = 64},
        {.name = "head_dim_32", .documents = {150}, .random_anchors = 7, .dead = 1, .head_dim = 32},
        {.name = "head_dim_96", .documents = {150}, .random_anchors = 7, .head_dim = 96},
        {.name = "group_1", .documents = {300}, .random_anchors = 21, .heads = 2, .kv_heads = 2},
        {.name = "group_2", .documents = {300}, .random_anchors = 13, .heads = 4, .kv_heads = 2},
        {.name = "group_3", .documents = {200, 100}, .random_anchors = 11, .dead = 1, .heads = 6, .kv_heads = 2},
        {.name = "group_5", .documents = {200}, .random_anchors = 9, .heads = 5, .kv_heads = 1, .window = 64},
        {.name = "group_6", .documents = {300}, .random_anchors = 9, .heads = 6, .kv_heads = 1},
        {.name = "group_8", .documents = {300}, .random_anchors = 9, .heads = 8, .kv_heads = 1, .causal = true},
        {.name = "width_2", .documents = {250}, .random_anchors = 75, .dead = 4, .width = 2, .heads = 2, .kv_heads = 2},
        {.name = "width_5", .documents = {250}, .random_anchors = 30, .width = 5, .heads = 3, .kv_heads = 1, .window = 40, .causal = true},
        {.name = "width_8", .documents = {250}, .random_anchors = 20, .width = 8},
        {.name = "width_64", .documents = {250}, .random_anchors = 5, .dead = 1, .width = 64, .heads = 8, .kv_heads = 2},
        {.name = "width_48_group_5", .documents = {250}, .random_anchors = 4, .width = 48, .heads = 5, .kv_heads = 1, .causal = true},
        {.name = "few_multiprocessors", .documents = {350, 350}, .random_anchors = 40, .multiprocessors = 3},
        {.name = "one_multiprocessor", .documents = {350, 150}, .random_anchors = 40, .dead = 1, .window = 90, .multiprocessors = 1},
        {.name = "starts_beside_tile_borders", .documents = {130, 256, 127}, .anchors = {129, 130, 257, 258, 385, 386, 499, 512}},
    };
}

// The smallest shapes that run every instance of every kernel (head dims 64 and 128, each tile, forward and backward) with tiles that are full,
// masked and folded, more than one tile in each direction, and dead blocks: for tools under which a kernel takes hundreds of times as long.
std::vector<Case> small_cases() {
    Case d128{.name = "small", .documents = {9, 240}, .anchors = {3, 5, 247, 248}, .dead = 1, .heads = 4, .kv_heads = 1};
    d128.multiprocessors = 1;
    Case d64{.name = "small_d64", .documents = {141}, .anchors = {1, 5, 139, 140}, .dead = 1, .heads = 4, .kv_heads = 1, .head_dim = 64};
    d64.window = 133;
    d64.causal = true;
    d64.multiprocessors = 1;
    return {d128, d64};
}

// Why a kernel cannot run here; empty: it can.
std::string why_not(const AttentionKernel& kernel) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return "no CUDA device";
    return kernel == kHopper && cuda::compute_capability() != 90 ? "not a Hopper device" : "";
}

class CudaAnchorAttention : public ::testing::TestWithParam<std::tuple<Case, AttentionKernel>> {
protected:
    void SetUp() override {
        if (const std::string reason = why_not(std::get<1>(GetParam())); !reason.empty()) GTEST_SKIP() << reason;
    }
};

class CudaAnchorAttentionRandom : public ::testing::TestWithParam<AttentionKernel> {
protected:
    void SetUp() override {
        if (const std::string reason = why_not(GetParam()); !reason.empty()) GTEST_SKIP() << reason;
    }
};

void expect_right_and_repeatable(const Case& c, const AttentionKernel& kernel) {
    Problem p = make_case(c);
    const DeviceRun run(p, kernel, 0);
    const Results got = run.results();
    const Results expected = reference(p);
    const Results plain = plain_bf16(p);
    expect_like_plain(got.out, plain.out, expected.out, "out");
    if (!expected.lse.empty()) {
        EXPECT_TRUE(close(std::span<const double>(got.lse), std::span<const double>(expected.lse), kModelF32)) << "lse";
    }
    expect_like_plain(got.d_in.q, plain.d_in.q, expected.d_in.q, "d_q");
    expect_like_plain(got.d_in.k_context, plain.d_in.k_context, expected.d_in.k_context, "d_k_context");
    expect_like_plain(got.d_in.v_context, plain.d_in.v_context, expected.d_in.v_context, "d_v_context");
    expect_like_plain(got.d_in.k_block, plain.d_in.k_block, expected.d_in.k_block, "d_k_block");
    expect_like_plain(got.d_in.v_block, plain.d_in.v_block, expected.d_in.v_block, "d_v_block");
    const std::int64_t tokens = p.shape.blocks * p.shape.width, live = p.shape.live * p.shape.width;
    expect_zero_tail(got.out, live, tokens, "out");
    expect_zero_tail(got.lse, live, tokens, "lse");
    expect_zero_tail(got.d_in.q, live, tokens, "d_q");
    expect_zero_tail(got.d_in.k_block, live, tokens, "d_k_block");
    expect_zero_tail(got.d_in.v_block, live, tokens, "d_v_block");

    const DeviceRun again(p, kernel, c.multiprocessors);
    for (std::size_t i = 0; i < run.outputs().size(); ++i) {
        EXPECT_EQ(run.outputs()[i]->download<std::uint8_t>(), again.outputs()[i]->download<std::uint8_t>())
            << "two runs differ in output " << i;
    }
}

TEST_P(CudaAnchorAttention, MatchesTheReferenceAndItself) {
    const auto& [c, kernel] = GetParam();
    expect_right_and_repeatable(c, kernel);
}

std::string kernel_name(const AttentionKernel& kernel) {
    return kernel == kHopper ? "hopper" : kernel == kPortable ? "portable" : "portable_tile_1";
}
std::string case_name(const ::testing::TestParamInfo<std::tuple<Case, AttentionKernel>>& instance) {
    return std::get<0>(instance.param).name + "_" + kernel_name(std::get<1>(instance.param));
}
INSTANTIATE_TEST_SUITE_P(Cases, CudaAnchorAttention,
                         ::testing::Combine(::testing::ValuesIn(cases()), ::testing::Values(kPortable, kPortableSmall, kHopper)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Sanitizers, CudaAnchorAttention,
                         ::testing::Combine(::testing::ValuesIn(small_cases()), ::testing::Values(kPortable, kPortableSmall, kHopper)),
                         case_name);

// Documents, anchors, sizes and windows drawn at random, forward and backward.
TEST_P(CudaAnchorAttentionRandom, DrawsMatchTheReference) {
    constexpr int kDraws = 200;
    constexpr int kGroups[] = {1, 2, 3, 4, 5, 6, 8};
    constexpr int kHeadDims[] = {32, 64, 96, 128};
    Philox rng(10, 1);
    const auto below = [&](int bound) { return static_cast<int>(rng.next_below(static_cast<std::uint64_t>(bound))); };
    for (int draw = 0; draw < kDraws && !HasFailure(); ++draw) {
        Case c{.name = "draw " + std::to_string(draw)};
        for (int documents = 1 + below(4); documents > 0; --documents) c.documents.push_back(1 + below(150));
        c.random_anchors = below(20);
        c.dead = below(3);
        c.width = 2 + below(20);
        c.kv_heads = 1 + below(2);
        c.heads = c.kv_heads * kGroups[below(7)];
        c.head_dim = kHeadDims[below(4)];
        c.window = below(2) == 0 ? 0 : 1 + below(150);
        c.causal = below(2) == 0;
        c.multiprocessors = below(3);
        SCOPED_TRACE(c.name);
        expect_right_and_repeatable(c, GetParam());
    }
}
INSTANTIATE_TEST_SUITE_P(Kernels, CudaAnchorAttentionRandom, ::testing::Values(kPortable, kPortableSmall, kHopper),
                         [](const auto& instance) { return kernel_name(instance.param); });

// The two back ends share no matrix code: at a size that fills the device they must agree, tile by tile.
TEST(CudaAnchorAttentionLarge, BackEndsAgree) {
    if (const std::string reason = why_not(kHopper); !reason.empty()) GTEST_SKIP() << reason;
    for (const int window : {0, 700}) {
        Case c{.name = "large", .documents = {3000, 2500, 692, 2000}, .random_anchors = 250, .dead = 6, .heads = 16, .kv_heads = 4};
        c.window = window;
        const Problem p = make_case(c);
        const Results a = DeviceRun(p, kPortable, 0).results();
        const Results b = DeviceRun(p, kHopper, 0).results();
        const auto same = [](const std::vector<double>& x, const std::vector<double>& y) {
            return close(std::span<const double>(x), std::span<const double>(y), kOpBf16);
        };
        EXPECT_TRUE(same(b.out, a.out)) << "out";
        EXPECT_TRUE(same(b.lse, a.lse)) << "lse";
        EXPECT_TRUE(same(b.d_in.q, a.d_in.q)) << "d_q";
        EXPECT_TRUE(same(b.d_in.k_context, a.d_in.k_context)) << "d_k_context";
        EXPECT_TRUE(same(b.d_in.v_context, a.d_in.v_context)) << "d_v_context";
        EXPECT_TRUE(same(b.d_in.k_block, a.d_in.k_block)) << "d_k_block";
        EXPECT_TRUE(same(b.d_in.v_block, a.d_in.v_block)) << "d_v_block";
    }
}

// Queries of more than 2^31 elements: the last blocks, whose indices do not fit 32 bits, get what they get when they are alone.
class CudaAnchorAttentionLongIndices : public CudaAnchorAttentionRandom {
protected:
    static constexpr std::int64_t kBlocks = 33000, kLast = 5, kWidth = 16, kHeads = 32, kKvHeads = 8, kHeadDim = 128, kContext = 34000;
    static constexpr std::int64_t kTokens = kBlocks * kWidth, kLastTokens = kLast * kWidth;
    static_assert(kTokens * kHeads * kHeadDim > std::int64_t{1} << 31);

    void SetUp() override {
        CudaAnchorAttentionRandom::SetUp();
        std::size_t free = 0, all = 0;
        if (!IsSkipped() && (cudaMemGetInfo(&free, &all) != cudaSuccess || free < std::size_t{26} << 30))
            GTEST_SKIP() << "less than 26 GiB";
    }
    // A new tensor on the device: of NaN, or of one random stretch over and over.
    Tensor poisoned(const Shape& shape, DType dtype = DType::kBF16) {
        Tensor tensor{nullptr, dtype, shape, {DeviceType::kCuda, 0}};
        memory_.push_back(std::make_unique<DeviceBytes>(tensor.bytes()));
        memory_.back()->poison();
        tensor.data = memory_.back()->data();
        return tensor;
    }
    Tensor random(const Shape& shape, std::uint64_t seed) {
        constexpr std::size_t kStretch = 999983;
        const Tensor tensor = poisoned(shape);
        const std::vector<std::uint16_t> stretch = to_bf16(random_bf16(kStretch, seed));
        auto* to = static_cast<char*>(tensor.data);
        std::size_t filled = std::min(2 * kStretch, tensor.bytes());
        DFLASH_CUDA(cudaMemcpy(to, stretch.data(), filled, cudaMemcpyHostToDevice));
        while (filled < tensor.bytes()) {
            const std::size_t more = std::min(filled, tensor.bytes() - filled);
            DFLASH_CUDA(cudaMemcpy(to + filled, to, more, cudaMemcpyDeviceToDevice));
            filled += more;
        }
        return tensor;
    }
    Tensor integers(const std::vector<int>& values) {
        const Tensor tensor = poisoned({static_cast<std::int64_t>(values.size())}, DType::kI32);
        memory_.back()->upload(values);
        return tensor;
    }
    static std::vector<double> values(const Tensor& tensor) {
        std::vector<std::uint16_t> bits(static_cast<std::size_t>(tensor.elements()));
        DFLASH_CUDA(cudaMemcpy(bits.data(), tensor.data, tensor.bytes(), cudaMemcpyDeviceToHost));
        std::vector<double> doubles(bits.size());
        std::transform(bits.begin(), bits.end(), doubles.begin(), [](std::uint16_t b) { return bf16_to_float(b); });
        return doubles;
    }
    void run(const AnchorAttentionBackwardParams& p) const {
        const Stream stream{{DeviceType::kCuda, 0}, nullptr};
        cuda::launch_anchor_attention_forward(stream, {p.q, p.k_context, p.v_context, p.k_block, p.v_block, p.mask, p.scale, p.out, p.lse},
                                              GetParam(), 0);
        cuda::launch_anchor_attention_backward(stream, p, GetParam(), 0);
        DFLASH_CUDA(cudaDeviceSynchronize());
    }

    std::vector<std::unique_ptr<DeviceBytes>> memory_;
};

TEST_P(CudaAnchorAttentionLongIndices, TheLastBlocksGetWhatTheyGetAlone) {
    const Shape query{kTokens, kHeads, kHeadDim}, key{kTokens, kKvHeads, kHeadDim}, context{kContext, kKvHeads, kHeadDim};
    std::vector<int> anchors(kBlocks);
    std::iota(anchors.begin(), anchors.end(), static_cast<int>(kContext - kBlocks));
    const auto part_of = [&](const Tensor& whole) { return whole.slice_rows(kTokens - kLastTokens, kLastTokens); };

    AnchorAttentionBackwardParams all;
    all.q = random(query, 1);
    all.k_context = random(context, 2);
    all.v_context = random(context, 3);
    all.k_block = random(key, 4);
    all.v_block = random(key, 5);
    all.d_out = random(query, 6);
    all.mask = {integers(std::vector<int>(kBlocks, 0)), integers(anchors), kBlocks, kWidth, /*window=*/70, /*causal_block=*/true};
    all.scale = 0.088F;
    AnchorAttentionBackwardParams alone = all;
    alone.mask.num_live = kLast;
    for (Tensor AnchorAttentionBackwardParams::*input : {&AnchorAttentionBackwardParams::q, &AnchorAttentionBackwardParams::k_block,
                                                         &AnchorAttentionBackwardParams::v_block, &AnchorAttentionBackwardParams::d_out}) {
        alone.*input = part_of(all.*input);
    }
    alone.mask.begin_row = integers(std::vector<int>(kLast, 0));
    alone.mask.anchor_row = integers({anchors.end() - kLast, anchors.end()});
    for (AnchorAttentionBackwardParams* p : {&all, &alone}) {
        const std::int64_t tokens = p->q.rows();
        p->out = poisoned({tokens, kHeads, kHeadDim});
        p->d_q = poisoned({tokens, kHeads, kHeadDim});
        p->d_k_block = poisoned({tokens, kKvHeads, kHeadDim});
        p->d_v_block = poisoned({tokens, kKvHeads, kHeadDim});
        p->d_k_context = poisoned(context);
        p->d_v_context = poisoned(context);
        p->lse = poisoned({tokens, kHeads}, DType::kF32);
        p->delta = poisoned({tokens, kHeads}, DType::kF32);
        run(*p);
    }
    const auto same = [](const Tensor& got, const Tensor& expected) {
        const std::vector<double> a = values(got), b = values(expected);
        return close(std::span<const double>(a), std::span<const double>(b), kOpBf16);
    };
    EXPECT_TRUE(same(part_of(all.out), alone.out)) << "out";
    EXPECT_TRUE(same(part_of(all.d_q), alone.d_q)) << "d_q";
    EXPECT_TRUE(same(part_of(all.d_k_block), alone.d_k_block)) << "d_k_block";
    EXPECT_TRUE(same(part_of(all.d_v_block), alone.d_v_block)) << "d_v_block";
}
INSTANTIATE_TEST_SUITE_P(Kernels, CudaAnchorAttentionLongIndices, ::testing::Values(kPortable, kHopper),
                         [](const auto& instance) { return kernel_name(instance.param); });

}  // namespace
}  // namespace dflash::testing
