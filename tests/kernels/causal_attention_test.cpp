// SPDX-License-Identifier: MIT
#include "kernels/causal_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/ref/causal_attention.h"
#include "support/close.h"
#include "support/data.h"

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
    CausalAttentionParams params() const { return {q, k, v, begin, end, scale(), out}; }
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

class CausalAttention : public ::testing::TestWithParam<Case> {};

TEST_P(CausalAttention, MatchesTheReference) {
    const Context context;
    const Ranges ranges = packed(GetParam().documents);
    const Inputs inputs(GetParam(), ranges, static_cast<std::int64_t>(ranges.begin.size()));
    causal_attention_forward(context, inputs.params());
    EXPECT_TRUE(close(inputs.out, inputs.expected(), testing::kOpF32));
}

TEST_P(CausalAttention, DocumentsInAPackEqualThemselvesAlone) {
    const Context context;
    const Ranges ranges = packed(GetParam().documents);
    const Inputs inputs(GetParam(), ranges, static_cast<std::int64_t>(ranges.begin.size()));
    causal_attention_forward(context, inputs.params());
    std::int64_t first = 0;
    for (const std::int64_t n : GetParam().documents) {
        const Ranges own = packed({static_cast<std::int32_t>(n)});
        const HostBuffer begin = i32_tensor(own.begin), end = i32_tensor(own.end);
        const HostBuffer out = poisoned_f32({n, inputs.shape.heads, inputs.shape.head_dim});
        causal_attention_forward(context, {inputs.q.tensor().slice_rows(first, n), inputs.k.tensor().slice_rows(first, n),
                                           inputs.v.tensor().slice_rows(first, n), begin, end, inputs.scale(), out});
        EXPECT_EQ(std::memcmp(out.tensor().data, inputs.out.tensor().slice_rows(first, n).data, out.tensor().bytes()), 0) << n;
        first += n;
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CausalAttention,
                         ::testing::Values(Case{{1}, 1, 1, 64}, Case{{3}, 4, 2, 32}, Case{{63, 64, 65}, 6, 2, 64},
                                           Case{{1, 3, 200, 7}, 8, 2, 32}, Case{{16, 17, 15, 130}, 3, 1, 128}, Case{{70, 2}, 6, 2, 256},
                                           Case{{40}, 5, 5, 7}, Case{{20, 90}, 2, 1, 33}));

TEST(CausalAttention, NoRows) {
    const Context context;
    const Inputs inputs({{}, 4, 2, 32}, {}, 0);
    EXPECT_NO_THROW(causal_attention_forward(context, inputs.params()));
}

// As in decoding: a few rows over a longer cache; a row's bits do not depend on the rows beside it.
TEST(CausalAttention, RowsDoNotDependOnTheirNeighbours) {
    const Context context;
    Ranges ranges;
    for (std::int32_t i = 0; i < 19; ++i) {
        ranges.begin.push_back(0);
        ranges.end.push_back(150 + i);
    }
    const Inputs inputs({{}, 6, 2, 64}, ranges, 200);
    causal_attention_forward(context, inputs.params());
    EXPECT_TRUE(close(inputs.out, inputs.expected(), testing::kOpF32));
    for (std::int64_t i = 0; i < 19; ++i) {
        const HostBuffer out = poisoned_f32({1, 6, 64});
        CausalAttentionParams one = inputs.params();
        one.q = one.q.slice_rows(i, 1), one.key_begin = one.key_begin.slice_rows(i, 1), one.key_end = one.key_end.slice_rows(i, 1),
        one.out = out;
        causal_attention_forward(context, one);
        EXPECT_EQ(std::memcmp(out.tensor().data, inputs.out.tensor().slice_rows(i, 1).data, out.tensor().bytes()), 0) << i;
    }
}

TEST(CausalAttention, RowsThatSeeNothingAreZero) {
    const Context context;
    const Inputs inputs({{}, 4, 2, 32}, {{0, 5, 0, 9}, {3, 5, 0, 2}}, 10);
    causal_attention_forward(context, inputs.params());
    EXPECT_TRUE(close(inputs.out, inputs.expected(), testing::kOpF32));
    const Tensor nothing = inputs.out.tensor().slice_rows(1, 3);
    for (std::int64_t i = 0; i < nothing.elements(); ++i) EXPECT_EQ(nothing.f32()[i], 0.0F);
}

TEST(CausalAttention, UnseenNanDoesNotLeakAndSeenNanShows) {
    const Context context;
    const Ranges ranges = packed({80});
    const Inputs inputs({{}, 2, 1, 32}, ranges, 80);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (std::int64_t d = 0; d < 32; ++d) {
        inputs.k.tensor().f32()[70 * 32 + d] = nan;
        inputs.v.tensor().f32()[75 * 32 + d] = nan;
    }
    causal_attention_forward(context, inputs.params());
    for (std::int64_t i = 0; i < 80; ++i) EXPECT_EQ(std::isnan(inputs.out.tensor().f32()[i * 64]), i >= 70) << i;
}

// Scores of several hundred: the running maximum has to carry them.
TEST(CausalAttention, LargeScoresStayFinite) {
    const Context context;
    Inputs inputs({{}, 2, 1, 64}, packed({130}), 130);
    for (std::int64_t i = 0; i < inputs.q.tensor().elements(); ++i) inputs.q.tensor().f32()[i] *= 100.0F;
    causal_attention_forward(context, inputs.params());
    EXPECT_TRUE(close(inputs.out, inputs.expected(), testing::kModelF32));
}

}  // namespace
}  // namespace dflash
