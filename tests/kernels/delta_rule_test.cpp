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
#include "support/device_case.h"

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

template <typename Base>
class DeltaFixture : public Base {
protected:
    DeltaRuleParams params(const Inputs& i) {
        DeltaRuleParams p;
        p.qkv = this->in(i.qkv), p.b = this->in(i.b), p.a = this->in(i.a), p.out = this->out(i.out);
        p.a_log = this->in(i.a_log, testing::kAsIs), p.dt_bias = this->in(i.dt_bias, testing::kAsIs);
        p.document_begin = this->in(i.document_begin);
        p.key_heads = i.s.key_heads, p.value_heads = i.s.value_heads, p.key_dim = i.s.key_dim, p.value_dim = i.s.value_dim;
        return p;
    }
    void run(bool chunk, const DeltaRuleParams& p) const {
        chunk ? delta_rule_chunk_forward(this->context(), p) : delta_rule_recurrent_forward(this->context(), p);
    }
};
class DeltaRuleShapes : public DeltaFixture<testing::DeviceCases<Shapes>> {};
class DeltaRule : public DeltaFixture<testing::DeviceTest> {};

TEST_P(DeltaRuleShapes, BothFormsMatchTheRecurrence) {
    for (const bool chunk : {true, false}) {
        SCOPED_TRACE(chunk ? "chunk form" : "recurrent form");
        const Inputs inputs(c_);
        const DeltaRuleParams p = params(inputs);
        if (chunk && device().type == DeviceType::kCuda && (c_.key_dim % 8 != 0 || c_.value_dim % 8 != 0)) {
            EXPECT_THROW(run(chunk, p), Error);  // 16-byte accesses
            forget();
            continue;
        }
        run(chunk, p);
        finish();
        std::vector<double> state(static_cast<std::size_t>(inputs.s.state()));
        EXPECT_TRUE(close(inputs.out, inputs.expected(state), tolerance(testing::kOpF32)));
        forget();
    }
}

DFLASH_CASES_ON_EACH_DEVICE(Lengths, DeltaRuleShapes,
                            ::testing::Values(Shapes{{1}}, Shapes{{3}}, Shapes{{63}}, Shapes{{64}}, Shapes{{65}}, Shapes{{200}},
                                              Shapes{{1, 3, 63, 64, 65, 0, 7}}, Shapes{{50}, 1, 1, 5, 3}, Shapes{{70, 9}, 1, 3, 17, 33},
                                              Shapes{{130}, 2, 6, 128, 128}, Shapes{{66}, 3, 3, 64, 48}));

// Longer than what the chunk form on CUDA works off at a time, alone and as one of several documents.
TEST_P(DeltaRule, LongDocumentsKeepTheirState) {
    for (const std::vector<std::int64_t>& documents : {std::vector<std::int64_t>{2500}, {100, 2300, 1, 2100, 77}}) {
        const Inputs inputs(Shapes{documents, 1, 1, 16, 8});
        run(true, params(inputs));
        finish();
        std::vector<double> state(static_cast<std::size_t>(inputs.s.state()));
        EXPECT_TRUE(close(inputs.out, inputs.expected(state), tolerance(testing::kOpF32)));
        forget();
    }
}

TEST_P(DeltaRule, CarriesTheRunningState) {
    for (const bool chunk : {true, false}) {
        const Inputs inputs(Shapes{{100}});
        const HostBuffer state = random_f32({6, 32, 32}, 9);
        std::vector<double> expected_state = to_double(state);
        DeltaRuleParams p = params(inputs);
        p.state = in_out(state, testing::kAsIs);
        run(chunk, p);
        finish();
        EXPECT_TRUE(close(inputs.out, inputs.expected(expected_state), tolerance(testing::kOpF32)));
        // in chunks the state grows by products in the working dtype
        EXPECT_TRUE(close(state, expected_state, tolerance(testing::kOpF32, chunk ? testing::kWorking : testing::kAsIs)));
        forget();
    }
}

TEST_P(DeltaRule, NoRowsLeaveTheState) {
    const Inputs inputs(Shapes{{0}});
    const HostBuffer state = random_f32({6, 32, 32}, 9);
    const std::vector<double> before = to_double(state);
    DeltaRuleParams p = params(inputs);
    p.state = in_out(state, testing::kAsIs);
    for (const bool chunk : {true, false}) run(chunk, p);
    finish();
    EXPECT_EQ(to_double(state), before);
}

// Log decay 0 everywhere, state forgotten at each row (log decay about -50), beta 0 and beta 1.
TEST_P(DeltaRule, LimitCasesMatchTheRecurrence) {
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
                const Inputs inputs(Shapes{{rows}});
                fill(inputs.a, limit.a);
                fill(inputs.a_log, limit.a_log);
                fill(inputs.b, limit.b);
                fill(inputs.dt_bias, 0.0F);
                run(chunk, params(inputs));
                finish();
                std::vector<double> state(static_cast<std::size_t>(inputs.s.state()));
                EXPECT_TRUE(close(inputs.out, inputs.expected(state), tolerance(testing::kOpF32)));
                forget();
            }
        }
    }
}

TEST_P(DeltaRule, DocumentsInAPackEqualThemselvesAlone) {
    const std::vector<std::int64_t> lengths = {5, 64, 9, 65, 1, 130};
    const Inputs packed(Shapes{lengths});
    const DeltaRuleParams all = params(packed);
    run(true, all);
    finish();
    forget();
    std::int64_t row = 0;
    for (const std::int64_t n : lengths) {
        const HostBuffer begin = i32_tensor({0, static_cast<std::int32_t>(n)});
        const HostBuffer alone = poisoned_f32({n, packed.s.value_heads, packed.s.value_dim});
        DeltaRuleParams p = all;
        p.qkv = all.qkv.slice_rows(row, n), p.a = all.a.slice_rows(row, n), p.b = all.b.slice_rows(row, n);
        p.document_begin = in(begin);
        p.out = out(alone);
        run(true, p);
        finish();
        const Tensor part = packed.out.tensor().slice_rows(row, n);
        EXPECT_EQ(std::memcmp(part.data, alone.tensor().data, part.bytes()), 0) << "document of " << n << " rows";
        row += n;
        forget();
    }
}

TEST_P(DeltaRule, StatesAfterEachRowAreThoseOfAShorterRun) {
    const Inputs inputs(Shapes{{9}});
    const HostBuffer start = random_f32({6, 32, 32}, 9);
    const HostBuffer last = random_f32({6, 32, 32}, 9);
    const HostBuffer after = poisoned_f32({9, 6, 32 * 32});
    DeltaRuleParams p = params(inputs);
    p.state = in_out(last, testing::kAsIs);
    p.states_after = out(after, testing::kAsIs);
    run(false, p);
    finish();
    forget();
    for (std::int64_t n = 1; n <= 9; ++n) {
        const HostBuffer state = random_f32({6, 32, 32}, 9);
        const HostBuffer one = i32_tensor({0, static_cast<std::int32_t>(n)});
        DeltaRuleParams shorter = p;
        shorter.states_after = {};
        shorter.state = in_out(state, testing::kAsIs);
        shorter.document_begin = in(one);
        shorter.qkv = p.qkv.slice_rows(0, n), shorter.a = p.a.slice_rows(0, n), shorter.b = p.b.slice_rows(0, n),
        shorter.out = p.out.slice_rows(0, n);
        run(false, shorter);
        finish();
        EXPECT_EQ(std::memcmp(after.tensor().slice_rows(n - 1, 1).data, state.tensor().data, state.tensor().bytes()), 0) << n;
        EXPECT_NE(std::memcmp(start.tensor().data, state.tensor().data, state.tensor().bytes()), 0) << n;
        forget();
    }
    EXPECT_EQ(std::memcmp(after.tensor().slice_rows(8, 1).data, last.tensor().data, last.tensor().bytes()), 0);
}

TEST_P(DeltaRule, NanStaysVisible) {
    for (const bool chunk : {true, false}) {
        const Inputs inputs(Shapes{{70}});
        inputs.b.tensor().f32()[66 * 6] = std::nanf("");
        run(chunk, params(inputs));
        finish();
        EXPECT_TRUE(std::isnan(inputs.out.tensor().f32()[66 * 6 * 32]));
        EXPECT_TRUE(std::isfinite(inputs.out.tensor().f32()[63 * 6 * 32]));  // the chunk before
        forget();
    }
}

DFLASH_ON_EACH_DEVICE(DeltaRule);

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

class CausalConv : public testing::DeviceTest {};

TEST_P(CausalConv, IsolatesDocuments) {
    for (const std::int64_t channels : {1, 15, 64, 77, 200}) {
        const std::vector<std::int64_t> documents = {1, 2, 3, 4, 0, 9, 65};
        const HostBuffer x = random_f32({84, channels}, 1);
        const HostBuffer weight = random_f32({channels, 4}, 2);
        const HostBuffer begin = i32_tensor(borders(documents));
        const HostBuffer y = poisoned_f32({84, channels});
        causal_conv_silu_forward(context(), {in(x), in(weight), in(begin), {}, out(y)});
        finish();
        EXPECT_TRUE(close(y, expected_conv(x, weight, documents, nullptr), tolerance(testing::kOpF32))) << channels;
        forget();
    }
}

TEST_P(CausalConv, ContinuesFromItsHistory) {
    for (const std::int64_t taps : {2, 3, 4}) {
        for (const std::int64_t channels : {70, 64}) {
            const HostBuffer x = random_f32({5, channels}, 1);
            const HostBuffer weight = random_f32({channels, taps}, 2);
            const HostBuffer history = random_f32({taps - 1, channels}, 3);
            const HostBuffer begin = i32_tensor({0, 5});
            const HostBuffer y = poisoned_f32({5, channels});
            causal_conv_silu_forward(context(), {in(x), in(weight), in(begin), in(history), out(y)});
            finish();
            EXPECT_TRUE(close(y, expected_conv(x, weight, {5}, to_double(history).data()), tolerance(testing::kOpF32))) << taps;
            forget();
        }
    }
}

TEST_P(CausalConv, ExtremeInputsStayFinite) {
    const HostBuffer x(DType::kF32, {1, 3});
    x.tensor().f32()[0] = -1e4F, x.tensor().f32()[1] = 1e4F, x.tensor().f32()[2] = -90.0F;
    const HostBuffer weight(DType::kF32, {3, 1});
    fill(weight, 1.0F);
    const HostBuffer begin = i32_tensor({0, 1});
    const HostBuffer y = poisoned_f32({1, 3});
    causal_conv_silu_forward(context(), {in(x), in(weight), in(begin), {}, out(y)});
    finish();
    EXPECT_TRUE(close(y, std::vector<double>{0, 1e4, 0}, tolerance(testing::kOpF32)));
}

TEST_P(CausalConv, HistoryKeepsTheLastRows) {
    for (const std::int64_t channels : {7, 16}) {
        for (const std::int64_t rows : {0, 1, 2, 3, 4, 10}) {
            const HostBuffer history = random_f32({3, channels}, 3);
            const HostBuffer x = random_f32({rows, channels}, 1);
            const Tensor history_in = in_out(history), x_in = in(x);
            std::vector<double> all = to_double(history);
            const std::vector<double> added = to_double(x);
            all.insert(all.end(), added.begin(), added.end());
            conv_history_append(context(), x_in, history_in);
            finish();
            EXPECT_EQ(to_double(history), std::vector<double>(all.end() - 3 * channels, all.end())) << rows;
            forget();
        }
    }
}

DFLASH_ON_EACH_DEVICE(CausalConv);

}  // namespace
}  // namespace dflash
