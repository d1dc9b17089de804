// SPDX-License-Identifier: MIT
#include "kernels/causal_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/ref/causal_attention.h"
#include "support/close.h"
#include "support/data.h"
#include "support/device_case.h"

namespace dflash {
namespace {

using testing::close;
using testing::i32_tensor;
using testing::poisoned_f32;
using testing::random_f32;
using testing::to_double;

struct Ranges {
    std::vector<std::int32_t> begin, end;
};
// Packed causal documents.
Ranges packed(const std::vector<std::int32_t>& documents) {
    Ranges ranges;
    std::int32_t first = 0;
    for (const std::int32_t n : documents) {
        for (std::int32_t i = 0; i < n; ++i) {
            ranges.begin.push_back(first);
            ranges.end.push_back(first + i + 1);
        }
        first += n;
    }
    return ranges;
}

struct Case {
    std::vector<std::int32_t> documents;
    std::int64_t heads, kv_heads, head_dim;
};

struct Inputs {
    Inputs(const Case& c, const Ranges& ranges, std::int64_t keys)
        : rows(static_cast<std::int64_t>(ranges.begin.size())),
          shape{rows, c.heads, c.kv_heads, c.head_dim},
          q(random_f32({rows, c.heads, c.head_dim}, 1, 3.0)),
          k(random_f32({keys, c.kv_heads, c.head_dim}, 2)),
          v(random_f32({keys, c.kv_heads, c.head_dim}, 3)),
          begin(i32_tensor(ranges.begin)),
          end(i32_tensor(ranges.end)),
          out(poisoned_f32({rows, c.heads, c.head_dim})) {}
    float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape.head_dim)); }
    std::vector<double> expected() const {
        std::vector<double> result(static_cast<std::size_t>(out.tensor().elements()));
        ref::causal_attention<double>(shape, to_double(q).data(), to_double(k).data(), to_double(v).data(), begin.tensor().i32(),
                                      end.tensor().i32(), static_cast<double>(scale()), result.data());
        return result;
    }
    std::int64_t rows;
    ref::AttentionShape shape;
    HostBuffer q, k, v, begin, end, out;
};

TEST(CausalAttentionRef, MatchesAHandWorkedCase) {
    // Two keys with scores 0 and ln 3: weights 1/4 and 3/4.
    const double q[] = {1}, k[] = {0, std::log(3.0)}, v[] = {8, 4};
    const std::int32_t begin[] = {0}, end[] = {2};
    std::vector<double> out(1);
    ref::causal_attention<double>({1, 1, 1, 1}, q, k, v, begin, end, 1.0, out.data());
    const std::vector<double> expected = {5};
    EXPECT_TRUE(close(std::span<const double>(out), std::span<const double>(expected), testing::kOpF32));
}

template <typename Base>
class AttentionFixture : public Base {
protected:
    CausalAttentionParams params(const Inputs& i) {
        return {this->in(i.q), this->in(i.k), this->in(i.v), this->in(i.begin), this->in(i.end), i.scale(), this->out(i.out)};
    }
    void run(const CausalAttentionParams& p) {
        causal_attention_forward(this->context(), p);
        this->finish();
    }
};
class CausalAttentionShapes : public AttentionFixture<testing::DeviceCases<Case>> {
protected:
    // CUDA reads 16 bytes at a time.
    bool built() const { return device().type == DeviceType::kCpu || c_.head_dim % 8 == 0; }
};
class CausalAttention : public AttentionFixture<testing::DeviceTest> {};

TEST_P(CausalAttentionShapes, PacksMatchTheReference) {
    const Ranges ranges = packed(c_.documents);
    const Inputs inputs(c_, ranges, static_cast<std::int64_t>(ranges.begin.size()));
    const CausalAttentionParams p = params(inputs);
    if (!built()) {
        EXPECT_THROW(causal_attention_forward(context(), p), Error);
        return;
    }
    run(p);
    EXPECT_TRUE(close(inputs.out, inputs.expected(), tolerance(testing::kOpF32)));
}

TEST_P(CausalAttentionShapes, DocumentsInAPackEqualThemselvesAlone) {
    if (!built()) GTEST_SKIP() << "head dims that are no multiples of 8 are for the CPU alone";
    const Ranges ranges = packed(c_.documents);
    const Inputs inputs(c_, ranges, static_cast<std::int64_t>(ranges.begin.size()));
    const CausalAttentionParams all = params(inputs);
    run(all);
    forget();
    std::int64_t first = 0;
    for (const std::int64_t n : c_.documents) {
        const Ranges own = packed({static_cast<std::int32_t>(n)});
        const HostBuffer begin = i32_tensor(own.begin), end = i32_tensor(own.end);
        const HostBuffer alone = poisoned_f32({n, inputs.shape.heads, inputs.shape.head_dim});
        run({all.q.slice_rows(first, n), all.k.slice_rows(first, n), all.v.slice_rows(first, n), in(begin), in(end), inputs.scale(),
             out(alone)});
        EXPECT_EQ(std::memcmp(alone.tensor().data, inputs.out.tensor().slice_rows(first, n).data, alone.tensor().bytes()), 0) << n;
        first += n;
        forget();
    }
}

// As in decoding: a few rows over a longer cache; a row's bits do not depend on the rows beside it. The cache's length decides how it is cut.
TEST_P(CausalAttentionShapes, RowsOverACacheMatchTheReferenceAndDoNotDependOnTheirNeighbours) {
    if (!built()) GTEST_SKIP() << "head dims that are no multiples of 8 are for the CPU alone";
    for (const std::int32_t keys : {200, 1000}) {
        SCOPED_TRACE(keys);
        Ranges ranges;
        for (std::int32_t i = 0; i < 19; ++i) {
            ranges.begin.push_back(i % 3 == 2 ? 5 : 0);
            ranges.end.push_back(i == 7 ? 0 : keys / 4 * 3 + i);
        }
        const Inputs inputs(c_, ranges, keys);
        const CausalAttentionParams all = params(inputs);
        run(all);
        EXPECT_TRUE(close(inputs.out, inputs.expected(), tolerance(testing::kOpF32)));
        forget();
        for (std::int64_t i = 0; i < 19; ++i) {
            const HostBuffer alone = poisoned_f32({1, c_.heads, c_.head_dim});
            CausalAttentionParams one = all;
            one.q = one.q.slice_rows(i, 1), one.key_begin = one.key_begin.slice_rows(i, 1), one.key_end = one.key_end.slice_rows(i, 1);
            one.out = out(alone);
            run(one);
            EXPECT_EQ(std::memcmp(alone.tensor().data, inputs.out.tensor().slice_rows(i, 1).data, alone.tensor().bytes()), 0) << i;
            forget();
        }
    }
}

DFLASH_CASES_ON_EACH_DEVICE(Shapes, CausalAttentionShapes,
                            ::testing::Values(Case{{1}, 1, 1, 64}, Case{{3}, 4, 2, 32}, Case{{63, 64, 65}, 6, 2, 64},
                                              Case{{1, 3, 200, 7}, 8, 2, 32}, Case{{16, 17, 15, 130}, 3, 1, 128}, Case{{70, 2}, 6, 2, 256},
                                              Case{{40}, 5, 5, 7}, Case{{20, 90}, 2, 1, 33}, Case{{40, 30}, 12, 2, 256},
                                              Case{{33}, 8, 1, 128}));

TEST_P(CausalAttention, NoRows) {
    const Inputs inputs({{}, 4, 2, 32}, {}, 0);
    EXPECT_NO_THROW(run(params(inputs)));
}

TEST_P(CausalAttention, RowsThatSeeNothingAreZero) {
    const Inputs inputs({{}, 4, 2, 32}, {{0, 5, 0, 9}, {3, 5, 0, 2}}, 10);
    run(params(inputs));
    EXPECT_TRUE(close(inputs.out, inputs.expected(), tolerance(testing::kOpF32)));
    const Tensor nothing = inputs.out.tensor().slice_rows(1, 3);
    for (std::int64_t i = 0; i < nothing.elements(); ++i) EXPECT_EQ(nothing.f32()[i], 0.0F);
}

TEST_P(CausalAttention, UnseenNanDoesNotLeakAndSeenNanShows) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const std::int64_t key_row : {70, 80}) {  // with a key that is not a number, and values alone
        const Inputs inputs({{}, 2, 1, 32}, packed({80}), 81);
        for (std::int64_t d = 0; d < 32; ++d) {
            inputs.k.tensor().f32()[key_row * 32 + d] = nan;
            inputs.v.tensor().f32()[75 * 32 + d] = nan;
        }
        run(params(inputs));
        for (std::int64_t i = 0; i < 80; ++i)
            EXPECT_EQ(std::isnan(inputs.out.tensor().f32()[i * 64]), i >= std::min<std::int64_t>(key_row, 75)) << i;
        forget();
    }
}

// What a cache held before may be anything.
TEST_P(CausalAttention, RowsOfTheCacheBeyondTheLastKeyDoNotLeak) {
    const Inputs inputs({{}, 4, 2, 64}, {{0, 0, 0}, {299, 300, 0}}, 700);
    const HostBuffer clean = poisoned_f32({3, 4, 64});
    CausalAttentionParams p = params(inputs);
    run(p);
    std::memcpy(clean.tensor().data, inputs.out.tensor().data, clean.tensor().bytes());
    forget();
    const Inputs stale({{}, 4, 2, 64}, {{0, 0, 0}, {299, 300, 0}}, 700);
    for (const HostBuffer* cache : {&stale.k, &stale.v}) {
        const Tensor rest = cache->tensor().slice_rows(300, 400);
        std::fill_n(rest.f32(), rest.elements(), std::numeric_limits<float>::quiet_NaN());
    }
    run(params(stale));
    EXPECT_EQ(std::memcmp(clean.tensor().data, stale.out.tensor().data, clean.tensor().bytes()), 0);
}

// Splits that a row's keys do not reach write no partial result: what the workspace held there must not count.
TEST_P(CausalAttention, WhatTheWorkspaceHeldDoesNotMatter) {
    constexpr std::int64_t kKeys = 1000;
    const Inputs inputs({{}, 4, 2, 64}, {{0, 0, 900, 5}, {10, 1000, 901, 5}}, kKeys);
    const std::size_t bytes = std::max<std::size_t>(causal_attention_workspace_bytes(device(), 4, kKeys, 4, 64), 1);
    const std::vector<unsigned char> nan(bytes, 0xff);
    const Tensor scratch{context().workspace(bytes), DType::kU8, {static_cast<std::int64_t>(bytes)}, device()};
    context().upload(nan.data(), scratch);
    run(params(inputs));
    EXPECT_TRUE(close(inputs.out, inputs.expected(), tolerance(testing::kOpF32)));
}

// Scores of several hundred: the running maximum has to carry them.
TEST_P(CausalAttention, LargeScoresStayFinite) {
    Inputs inputs({{}, 2, 1, 64}, packed({130}), 130);
    for (std::int64_t i = 0; i < inputs.q.tensor().elements(); ++i) inputs.q.tensor().f32()[i] *= 100.0F;
    run(params(inputs));
    EXPECT_TRUE(close(inputs.out, inputs.expected(), tolerance(testing::kModelF32)));
}

DFLASH_ON_EACH_DEVICE(CausalAttention);

}  // namespace
}  // namespace dflash
