// SPDX-License-Identifier: MIT
// Both forms of the gated delta rule and its convolution against the recurrence in double.
#include "kernels/delta_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include "kernels/ref/delta_rule.h"
#include "support/close.h"
#include "support/data.h"

namespace dflash {
namespace {

using testing::close;
using testing::i32_tensor;
using testing::poisoned_f32;
using testing::random_f32;
using testing::to_double;

struct Shapes {
    std::vector<std::int64_t> documents;
    std::int64_t key_heads = 2, value_heads = 6, key_dim = 32, value_dim = 32;
    std::int64_t rows() const { return std::accumulate(documents.begin(), documents.end(), std::int64_t{0}); }
    std::int64_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
    std::int64_t state() const { return value_heads * key_dim * value_dim; }
};

std::vector<std::int32_t> borders(const std::vector<std::int64_t>& lengths) {
    std::vector<std::int32_t> result = {0};
    for (const std::int64_t n : lengths) result.push_back(result.back() + static_cast<std::int32_t>(n));
    return result;
}

void fill(const HostBuffer& buffer, float value) {
    for (std::int64_t i = 0; i < buffer.tensor().elements(); ++i) buffer.tensor().f32()[i] = value;
}

// Inputs of one case, with decays from short to long memory over the heads.
struct Inputs {
    explicit Inputs(const Shapes& shapes)
        : s(shapes),
          qkv(random_f32({s.rows(), s.channels()}, 1)),
          b(random_f32({s.rows(), s.value_heads}, 2)),
          a(random_f32({s.rows(), s.value_heads}, 3)),
          a_log(random_f32({s.value_heads}, 4)),
          dt_bias(random_f32({s.value_heads}, 5, 1.5, -3.0)),
          document_begin(i32_tensor(borders(s.documents))),
          out(poisoned_f32({s.rows(), s.value_heads, s.value_dim})) {}

    DeltaRuleParams params() const {
        DeltaRuleParams p;
        p.qkv = qkv, p.b = b, p.a = a, p.a_log = a_log, p.dt_bias = dt_bias, p.document_begin = document_begin, p.out = out;
        p.key_heads = s.key_heads, p.value_heads = s.value_heads, p.key_dim = s.key_dim, p.value_dim = s.value_dim;
        return p;
    }
    // Outputs in double; `state` is that of the last document.
    std::vector<double> expected(std::vector<double>& state) const {
        const auto q = to_double(qkv), bb = to_double(b), aa = to_double(a), al = to_double(a_log), dt = to_double(dt_bias);
        std::vector<double> result(static_cast<std::size_t>(s.rows() * s.value_heads * s.value_dim));
        std::int64_t row = 0;
        for (const std::int64_t n : s.documents) {
            if (s.documents.size() > 1) state.assign(static_cast<std::size_t>(s.state()), 0.0);
            ref::delta_rule<double>({n, s.key_heads, s.value_heads, s.key_dim, s.value_dim}, &q[row * s.channels()],
                                    &bb[row * s.value_heads], &aa[row * s.value_heads], al.data(), dt.data(), state.data(),
                                    &result[row * s.value_heads * s.value_dim]);
            row += n;
        }
        return result;
    }

    Shapes s;
    HostBuffer qkv, b, a, a_log, dt_bias, document_begin, out;
};

TEST(DeltaRuleRef, MatchesAHandWorkedCase) {
    // One head of one dimension: q = k = 1 after the norm (up to eps), beta = 1/2, decay = 1/2 (softplus(0) = ln 2, A = 1).
    const std::vector<double> qkv = {1e3, 1e3, 4, 1e3, 1e3, 8};
    const std::vector<double> zeros(2, 0.0);
    double state = 2;
    std::vector<double> out(2);
    ref::delta_rule<double>({2, 1, 1, 1, 1}, qkv.data(), zeros.data(), zeros.data(), zeros.data(), zeros.data(), &state, out.data());
    // 2 -> 1, d = (4 - 1)/2, S = 2.5; 2.5 -> 1.25, d = (8 - 1.25)/2, S = 4.625
    const std::vector<double> expected = {2.5, 4.625};
    EXPECT_TRUE(close(std::span<const double>(out), std::span<const double>(expected), testing::kOpF32));
}

class DeltaRule : public ::testing::TestWithParam<Shapes> {};

TEST_P(DeltaRule, ChunkFormMatchesTheRecurrence) {
    const Context context;
    const Inputs inputs(GetParam());
    delta_rule_chunk_forward(context, inputs.params());
    std::vector<double> state(static_cast<std::size_t>(inputs.s.state()));
    EXPECT_TRUE(close(inputs.out, inputs.expected(state), testing::kOpF32));
}

TEST_P(DeltaRule, RecurrentFormMatchesTheRecurrence) {
    const Context context;
    const Inputs inputs(GetParam());
    delta_rule_recurrent_forward(context, inputs.params());
    std::vector<double> state(static_cast<std::size_t>(inputs.s.state()));
    EXPECT_TRUE(close(inputs.out, inputs.expected(state), testing::kOpF32));
}

INSTANTIATE_TEST_SUITE_P(Lengths, DeltaRule,
                         ::testing::Values(Shapes{{1}}, Shapes{{3}}, Shapes{{63}}, Shapes{{64}}, Shapes{{65}}, Shapes{{200}},
                                           Shapes{{1, 3, 63, 64, 65, 0, 7}}, Shapes{{50}, 1, 1, 5, 3}, Shapes{{70, 9}, 1, 3, 17, 33},
                                           Shapes{{130}, 2, 6, 128, 128}, Shapes{{66}, 3, 3, 64, 48}));

TEST(DeltaRule, CarriesTheRunningState) {
    const Context context;
    for (const bool chunk : {true, false}) {
        Inputs inputs(Shapes{{100}});
        const HostBuffer state = random_f32({6, 32, 32}, 9);
        std::vector<double> expected_state = to_double(state);
        DeltaRuleParams p = inputs.params();
        p.state = state;
        chunk ? delta_rule_chunk_forward(context, p) : delta_rule_recurrent_forward(context, p);
        EXPECT_TRUE(close(inputs.out, inputs.expected(expected_state), testing::kOpF32));
        EXPECT_TRUE(close(state, expected_state, testing::kOpF32));
    }
}

TEST(DeltaRule, NoRowsLeaveTheState) {
    const Context context;
    const Inputs inputs(Shapes{{0}});
    const HostBuffer state = random_f32({6, 32, 32}, 9);
    const std::vector<double> before = to_double(state);
    DeltaRuleParams p = inputs.params();
    p.state = state;
    delta_rule_chunk_forward(context, p);
    delta_rule_recurrent_forward(context, p);
    EXPECT_EQ(to_double(state), before);
}

// Log decay 0 everywhere, state forgotten at each row (log decay about -50), beta 0 and beta 1.
TEST(DeltaRule, LimitCasesMatchTheRecurrence) {
    const Context context;
    struct Limit {
        float a, a_log, b;
    };
    const Limit limits[] = {{-1e4F, 0.0F, 0.0F},
                            {50.0F, 0.0F, 0.0F},
                            {50.0F, 3.0F, 90.0F},
                            {0.0F, 0.0F, -std::numeric_limits<float>::infinity()},
                            {-3.0F, 0.0F, 200.0F}};
    for (const std::int64_t rows : {7, 50, 64, 65, 200}) {
        for (const Limit& limit : limits) {
            for (const bool chunk : {true, false}) {
                SCOPED_TRACE(fmt::format("{} rows, a {}, b {}, chunk {}", rows, limit.a, limit.b, chunk));
                Inputs inputs(Shapes{{rows}});
                fill(inputs.a, limit.a);
                fill(inputs.a_log, limit.a_log);
                fill(inputs.b, limit.b);
                fill(inputs.dt_bias, 0.0F);
                chunk ? delta_rule_chunk_forward(context, inputs.params()) : delta_rule_recurrent_forward(context, inputs.params());
                std::vector<double> state(static_cast<std::size_t>(inputs.s.state()));
                EXPECT_TRUE(close(inputs.out, inputs.expected(state), testing::kOpF32));
            }
        }
    }
}

TEST(DeltaRule, DocumentsInAPackEqualThemselvesAlone) {
    const Context context;
    const std::vector<std::int64_t> lengths = {5, 64, 9, 65, 1, 130};
    Inputs packed(Shapes{lengths});
    delta_rule_chunk_forward(context, packed.params());
    std::int64_t row = 0;
    for (const std::int64_t n : lengths) {
        Inputs alone(Shapes{{n}});
        DeltaRuleParams p = alone.params();
        p.qkv = packed.qkv.tensor().slice_rows(row, n);
        p.a = packed.a.tensor().slice_rows(row, n);
        p.b = packed.b.tensor().slice_rows(row, n);
        p.a_log = packed.a_log;
        p.dt_bias = packed.dt_bias;
        delta_rule_chunk_forward(context, p);
        const Tensor part = packed.out.tensor().slice_rows(row, n);
        EXPECT_EQ(std::memcmp(part.data, alone.out.tensor().data, part.bytes()), 0) << "document of " << n << " rows";
        row += n;
    }
}

TEST(DeltaRule, StatesAfterEachRowAreThoseOfAShorterRun) {
    const Context context;
    Inputs inputs(Shapes{{9}});
    const HostBuffer state = random_f32({6, 32, 32}, 9);
    const HostBuffer after = poisoned_f32({9, 6, 32 * 32});
    const HostBuffer start = random_f32({6, 32, 32}, 9);
    DeltaRuleParams p = inputs.params();
    p.state = state;
    p.states_after = after;
    delta_rule_recurrent_forward(context, p);
    for (std::int64_t n = 1; n <= 9; ++n) {
        std::memcpy(state.tensor().data, start.tensor().data, start.tensor().bytes());
        const HostBuffer one = i32_tensor({0, static_cast<std::int32_t>(n)});
        DeltaRuleParams shorter = p;
        shorter.states_after = {};
        shorter.document_begin = one;
        shorter.qkv = p.qkv.slice_rows(0, n), shorter.a = p.a.slice_rows(0, n), shorter.b = p.b.slice_rows(0, n),
        shorter.out = p.out.slice_rows(0, n);
        delta_rule_recurrent_forward(context, shorter);
        EXPECT_EQ(std::memcmp(after.tensor().slice_rows(n - 1, 1).data, state.tensor().data, state.tensor().bytes()), 0) << n;
    }
}

TEST(DeltaRule, NanStaysVisible) {
    const Context context;
    for (const bool chunk : {true, false}) {
        const Inputs inputs(Shapes{{70}});
        inputs.b.tensor().f32()[66 * 6] = std::nanf("");
        chunk ? delta_rule_chunk_forward(context, inputs.params()) : delta_rule_recurrent_forward(context, inputs.params());
        EXPECT_TRUE(std::isnan(inputs.out.tensor().f32()[66 * 6 * 32]));
        EXPECT_TRUE(std::isfinite(inputs.out.tensor().f32()[63 * 6 * 32]));  // the chunk before
    }
}

std::vector<double> expected_conv(const HostBuffer& x, const HostBuffer& weight, const std::vector<std::int64_t>& documents,
                                  const double* history) {
    const std::int64_t channels = x.tensor().shape[1];
    const auto input = to_double(x), taps = to_double(weight);
    std::vector<double> y(input.size());
    std::int64_t row = 0;
    for (const std::int64_t n : documents) {
        ref::causal_conv_silu<double>(n, channels, weight.tensor().shape[1], input.data() + row * channels, taps.data(), history,
                                      y.data() + row * channels);
        row += n;
    }
    return y;
}

TEST(CausalConv, IsolatesDocuments) {
    const Context context;
    for (const std::int64_t channels : {1, 15, 64, 77, 200}) {
        const std::vector<std::int64_t> documents = {1, 2, 3, 4, 0, 9, 65};
        const HostBuffer x = random_f32({84, channels}, 1);
        const HostBuffer weight = random_f32({channels, 4}, 2);
        const HostBuffer begin = i32_tensor(borders(documents));
        const HostBuffer y = poisoned_f32({84, channels});
        causal_conv_silu_forward(context, {x, weight, begin, {}, y});
        EXPECT_TRUE(close(y, expected_conv(x, weight, documents, nullptr), testing::kOpF32)) << channels;
    }
}

TEST(CausalConv, ContinuesFromItsHistory) {
    const Context context;
    const HostBuffer x = random_f32({5, 70}, 1);
    const HostBuffer weight = random_f32({70, 4}, 2);
    const HostBuffer history = random_f32({3, 70}, 3);
    const HostBuffer begin = i32_tensor({0, 5});
    const HostBuffer y = poisoned_f32({5, 70});
    causal_conv_silu_forward(context, {x, weight, begin, history, y});
    EXPECT_TRUE(close(y, expected_conv(x, weight, {5}, to_double(history).data()), testing::kOpF32));
}

TEST(CausalConv, ExtremeInputsStayFinite) {
    const Context context;
    const HostBuffer x(DType::kF32, {1, 3});
    x.tensor().f32()[0] = -1e4F, x.tensor().f32()[1] = 1e4F, x.tensor().f32()[2] = -90.0F;
    const HostBuffer weight(DType::kF32, {3, 1});
    fill(weight, 1.0F);
    const HostBuffer begin = i32_tensor({0, 1});
    const HostBuffer y = poisoned_f32({1, 3});
    causal_conv_silu_forward(context, {x, weight, begin, {}, y});
    EXPECT_TRUE(close(y, std::vector<double>{0, 1e4, 0}, testing::kOpF32));
}

TEST(CausalConv, HistoryKeepsTheLastRows) {
    const Context context;
    for (const std::int64_t rows : {0, 1, 2, 3, 4, 10}) {
        const HostBuffer history = random_f32({3, 7}, 3);
        const HostBuffer x = random_f32({rows, 7}, 1);
        std::vector<double> all = to_double(history);
        const std::vector<double> added = to_double(x);
        all.insert(all.end(), added.begin(), added.end());
        conv_history_append(context, x, history);
        EXPECT_EQ(to_double(history), std::vector<double>(all.end() - 21, all.end())) << rows;
    }
}

}  // namespace
}  // namespace dflash
