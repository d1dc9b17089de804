// SPDX-License-Identifier: MIT
// Anchor attention against the dense double reference, and what the mask must never let through.
#include "kernels/anchor_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/rng.h"
#include "kernels/cpu/anchor_attention.h"
#include "kernels/ref/anchor_attention.h"
#include "support/close.h"
#include "support/data.h"
#include "support/gradcheck.h"

namespace dflash {
namespace {

using testing::close;
using testing::i32_tensor;
using testing::poisoned_f32;
using testing::random_f32;
using testing::to_double;

using Reference = ref::AnchorAttentionInputs<double>;

struct AttentionCase {
    std::string name;
    std::vector<std::int32_t> documents;  // lengths; S is their sum
    std::vector<std::int32_t> anchors;    // rows of the packed micro-batch, one a block
    std::int64_t dead = 0;                // blocks after the live ones
    std::int64_t width = 4, heads = 4, kv_heads = 2, head_dim = 32;
    std::int64_t window = 0;
    bool causal = false;
};

ref::AnchorAttentionShape shape_of(const AttentionCase& c) {
    ref::AnchorAttentionShape s;
    s.live = static_cast<std::int64_t>(c.anchors.size());
    s.blocks = s.live + c.dead;
    s.width = c.width;
    s.heads = c.heads;
    s.kv_heads = c.kv_heads;
    s.head_dim = c.head_dim;
    s.window = c.window;
    s.causal_block = c.causal;
    std::vector<std::int32_t> borders = {0};
    for (const std::int32_t length : c.documents) borders.push_back(borders.back() + length);
    s.context = borders.back();
    for (const std::int32_t anchor : c.anchors) {
        s.anchor.push_back(anchor);
        s.begin.push_back(*(std::upper_bound(borders.begin(), borders.end(), anchor) - 1));
        if (anchor == s.context) s.begin.back() = borders[borders.size() - 2];
    }
    // Dead blocks name rows that do not exist.
    s.anchor.resize(static_cast<std::size_t>(s.blocks), 1 << 30);
    s.begin.resize(static_cast<std::size_t>(s.blocks), -5);
    return s;
}

// Inputs, outputs and gradients of one case; outputs are poisoned.
struct Problem {
    explicit Problem(const AttentionCase& c, std::uint64_t seed = 1, double size = 1.0)
        : shape(shape_of(c)),
          q_shape{shape.blocks * c.width, c.heads, c.head_dim},
          context_shape{shape.context, c.kv_heads, c.head_dim},
          block_shape{shape.blocks * c.width, c.kv_heads, c.head_dim},
          begin(i32_tensor(shape.begin)),
          anchor(i32_tensor(shape.anchor)),
          q(random_f32(q_shape, seed, size)),
          k_context(random_f32(context_shape, seed + 1, size)),
          v_context(random_f32(context_shape, seed + 2)),
          k_block(random_f32(block_shape, seed + 3, size)),
          v_block(random_f32(block_shape, seed + 4)),
          d_out(random_f32(q_shape, seed + 5)),
          out(poisoned_f32(q_shape)),
          lse(poisoned_f32({q_shape[0], c.heads})),
          delta(poisoned_f32({q_shape[0], c.heads})),
          d_q(poisoned_f32(q_shape)),
          d_k_context(poisoned_f32(context_shape)),
          d_v_context(poisoned_f32(context_shape)),
          d_k_block(poisoned_f32(block_shape)),
          d_v_block(poisoned_f32(block_shape)) {}

    AnchorAttentionMask mask() const { return {begin, anchor, shape.live, shape.width, shape.window, shape.causal_block}; }
    void forward() { anchor_attention_forward(context, {q, k_context, v_context, k_block, v_block, mask(), scale, out, lse}); }
    void backward() {
        anchor_attention_backward(context, {d_out, q, k_context, v_context, k_block, v_block, mask(), scale, out, lse, delta, d_q,
                                            d_k_context, d_v_context, d_k_block, d_v_block});
    }
    Reference reference_inputs() const {
        return {to_double(q), to_double(k_context), to_double(v_context), to_double(k_block), to_double(v_block)};
    }

    Context context;
    ref::AnchorAttentionShape shape;
    Shape q_shape, context_shape, block_shape;
    float scale = 0.18F;
    HostBuffer begin, anchor;
    HostBuffer q, k_context, v_context, k_block, v_block, d_out;
    HostBuffer out, lse, delta, d_q, d_k_context, d_v_context, d_k_block, d_v_block;
};

::testing::AssertionResult close_or_empty(const Tensor& got, const std::vector<double>& ref, testing::Tolerance tolerance) {
    if (got.elements() == 0 && ref.empty()) return ::testing::AssertionSuccess();
    return close(got, ref, tolerance);
}

void expect_matches_reference(Problem& problem) {
    problem.forward();
    problem.backward();
    Reference in = problem.reference_inputs(), d_in;
    std::vector<double> out, lse;
    ref::anchor_attention_forward<double>(problem.shape, in, problem.scale, out, lse);
    ref::anchor_attention_backward<double>(problem.shape, in, problem.scale, to_double(problem.d_out), d_in);
    EXPECT_TRUE(close(problem.out, out, testing::kOpF32));
    EXPECT_TRUE(close(problem.lse, lse, testing::kOpF32));
    EXPECT_TRUE(close(problem.d_q, d_in.q, testing::kGradientF32));
    EXPECT_TRUE(close_or_empty(problem.d_k_context, d_in.k_context, testing::kGradientF32));
    EXPECT_TRUE(close_or_empty(problem.d_v_context, d_in.v_context, testing::kGradientF32));
    EXPECT_TRUE(close(problem.d_k_block, d_in.k_block, testing::kGradientF32));
    EXPECT_TRUE(close(problem.d_v_block, d_in.v_block, testing::kGradientF32));
}

class AnchorAttention : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(AnchorAttention, ForwardAndBackwardMatchTheDenseReference) {
    Problem problem(GetParam());
    expect_matches_reference(problem);
}

TEST_P(AnchorAttention, DeadBlocksGiveZerosAndEverythingIsFinite) {
    Problem problem(GetParam());
    problem.forward();
    problem.backward();
    const std::int64_t live_rows = problem.shape.live * problem.shape.width;
    for (const HostBuffer* buffer : {&problem.out, &problem.lse, &problem.delta, &problem.d_q, &problem.d_k_block, &problem.d_v_block}) {
        const Tensor dead = buffer->tensor().slice_rows(live_rows, buffer->tensor().rows() - live_rows);
        for (const float value : testing::f32_span(dead)) ASSERT_EQ(value, 0.0F);
    }
    for (const HostBuffer* buffer : {&problem.out, &problem.lse, &problem.d_q, &problem.d_k_context, &problem.d_v_context}) {
        for (const float value : testing::f32_span(*buffer)) ASSERT_TRUE(std::isfinite(value));
    }
}

TEST_P(AnchorAttention, TwoRunsGiveTheSameBits) {
    Problem first(GetParam()), second(GetParam());
    first.forward();
    first.backward();
    second.forward();
    second.backward();
    const auto same = [](const Tensor& a, const Tensor& b) { return std::memcmp(a.data, b.data, a.bytes()) == 0; };
    EXPECT_TRUE(same(first.out, second.out));
    EXPECT_TRUE(same(first.d_q, second.d_q));
    EXPECT_TRUE(same(first.d_k_context, second.d_k_context));
    EXPECT_TRUE(same(first.d_v_context, second.d_v_context));
}

// NaN in context rows that no live slot sees, and in everything of dead blocks, changes nothing.
TEST_P(AnchorAttention, NanWhereNobodyLooksChangesNothing) {
    Problem clean(GetParam()), dirty(GetParam());
    const ref::AnchorAttentionShape& s = dirty.shape;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (std::int64_t row = 0; row < s.context; ++row) {
        bool seen = false;
        for (std::int64_t b = 0; b < s.live; ++b) {
            for (std::int64_t slot = 0; slot < s.width; ++slot) seen = seen || s.visible(b, slot, row);
        }
        if (seen) continue;
        for (HostBuffer* buffer : {&dirty.k_context, &dirty.v_context}) {
            const Tensor unseen = buffer->tensor().slice_rows(row, 1);
            std::fill_n(unseen.f32(), unseen.elements(), nan);
        }
    }
    for (HostBuffer* buffer : {&dirty.q, &dirty.k_block, &dirty.v_block, &dirty.d_out}) {
        const Tensor dead = buffer->tensor().slice_rows(s.live * s.width, (s.blocks - s.live) * s.width);
        std::fill_n(dead.f32(), dead.elements(), nan);
    }
    clean.forward();
    clean.backward();
    dirty.forward();
    dirty.backward();
    for (const auto& [a, b] : {std::pair{&clean.out, &dirty.out},
                               {&clean.lse, &dirty.lse},
                               {&clean.d_q, &dirty.d_q},
                               {&clean.d_k_context, &dirty.d_k_context},
                               {&clean.d_v_context, &dirty.d_v_context},
                               {&clean.d_k_block, &dirty.d_k_block},
                               {&clean.d_v_block, &dirty.d_v_block}}) {
        EXPECT_EQ(0, std::memcmp(a->tensor().data, b->tensor().data, a->tensor().bytes()));
    }
}

std::vector<AttentionCase> cases() {
    std::vector<AttentionCase> list;
    const auto add = [&](AttentionCase c) { list.push_back(std::move(c)); };
    add({.name = "one_document", .documents = {40}, .anchors = {1, 7, 20, 39}});
    add({.name = "ragged_documents", .documents = {7, 3, 20, 1, 33}, .anchors = {0, 3, 6, 8, 12, 29, 30, 31, 63}});
    add({.name = "first_and_last_rows", .documents = {9, 9}, .anchors = {0, 8, 9, 17, 18}});
    add({.name = "duplicates", .documents = {30}, .anchors = {11, 11, 11}});
    add({.name = "unsorted", .documents = {30, 40}, .anchors = {60, 3, 31, 29, 3, 45}});
    add({.name = "dead_blocks", .documents = {30}, .anchors = {4, 25}, .dead = 3});
    add({.name = "all_dead", .documents = {30}, .anchors = {}, .dead = 2});
    add({.name = "no_context_rows", .documents = {0}, .anchors = {0}});
    add({.name = "tile_borders", .documents = {200}, .anchors = {63, 64, 65, 127, 128, 129, 191, 192, 200}, .width = 2});
    add({.name = "window", .documents = {150, 90}, .anchors = {2, 15, 16, 17, 80, 149, 151, 200, 239}, .width = 8, .window = 16});
    add({.name = "window_causal", .documents = {150}, .anchors = {2, 80, 149}, .width = 8, .window = 70, .causal = true});
    add({.name = "window_of_one", .documents = {20}, .anchors = {5, 19}, .width = 3, .window = 1, .causal = true});
    add({.name = "causal_full", .documents = {70}, .anchors = {5, 66}, .width = 16, .causal = true});
    add({.name = "wide_block", .documents = {100}, .anchors = {50, 99}, .width = 64, .heads = 6, .kv_heads = 2, .window = 65});
    add({.name = "wide_block_causal", .documents = {100}, .anchors = {50, 99}, .width = 64, .heads = 3, .kv_heads = 1, .causal = true});
    add({.name = "one_group", .documents = {70}, .anchors = {69}, .width = 16, .heads = 8, .kv_heads = 1, .head_dim = 64});
    add({.name = "no_sharing", .documents = {70}, .anchors = {3, 69}, .width = 7, .heads = 3, .kv_heads = 3, .head_dim = 128});
    add({.name = "large_heads", .documents = {70}, .anchors = {69}, .width = 5, .heads = 2, .kv_heads = 1, .head_dim = 256});
    add({.name = "odd_heads", .documents = {70}, .anchors = {40, 69}, .width = 5, .heads = 2, .kv_heads = 1, .head_dim = 37});
    add({.name = "bench_shape", .documents = {300}, .anchors = {100, 299}, .width = 16, .heads = 4, .kv_heads = 2, .head_dim = 64});
    return list;
}
INSTANTIATE_TEST_SUITE_P(Cases, AnchorAttention, ::testing::ValuesIn(cases()), [](const auto& test) { return test.param.name; });

// 200 random draws of documents, anchors, sizes and windows.
TEST(AnchorAttentionRandom, TwoHundredDrawsMatchTheDenseReference) {
    Philox rng(7, 1);
    const auto draw = [&rng](std::uint64_t low, std::uint64_t high) {
        return static_cast<std::int64_t>(low + rng.next_below(high - low + 1));
    };
    for (int i = 0; i < 200; ++i) {
        AttentionCase c;
        for (std::int64_t d = draw(1, 4); d > 0; --d) c.documents.push_back(static_cast<std::int32_t>(draw(1, 90)));
        const std::int32_t total = std::accumulate(c.documents.begin(), c.documents.end(), 0);
        for (std::int64_t a = draw(0, 5); a > 0; --a)
            c.anchors.push_back(static_cast<std::int32_t>(draw(0, static_cast<std::uint64_t>(total) - 1)));
        c.dead = draw(c.anchors.empty() ? 1 : 0, 2);
        c.width = draw(2, 18);
        c.kv_heads = draw(1, 2);
        c.heads = c.kv_heads * draw(1, 3);
        c.head_dim = 16 * draw(1, 3);
        c.causal = draw(0, 1) == 1;
        c.window = draw(0, 1) == 1 ? draw(static_cast<std::uint64_t>(c.width), 100) : 0;
        SCOPED_TRACE("draw " + std::to_string(i));
        Problem problem(c, static_cast<std::uint64_t>(i) * 10 + 1);
        expect_matches_reference(problem);
        if (::testing::Test::HasFailure()) return;
    }
}

// The tiles that a group of rows visits hold every key that one of its rows sees, once, and no key that none sees; and only those that hide
// a key from a row are checked pair by pair.
TEST(AnchorAttentionTiles, AreTheVisiblePairsAndNoMore) {
    Philox rng(8, 1);
    const auto draw = [&rng](std::int64_t low, std::int64_t high) {
        return low + static_cast<std::int64_t>(rng.next_below(static_cast<std::uint64_t>(high - low + 1)));
    };
    for (int i = 0; i < 200; ++i) {
        const std::int64_t width = draw(2, 64);
        const std::int64_t context = draw(1, 400);
        const HostBuffer begin(DType::kI32, {1}), anchor(DType::kI32, {1});
        begin.tensor().i32()[0] = static_cast<std::int32_t>(draw(0, context - 1));
        anchor.tensor().i32()[0] = static_cast<std::int32_t>(draw(begin.tensor().i32()[0], context - 1));
        const AnchorAttentionMask mask = {.begin_row = begin,
                                          .anchor_row = anchor,
                                          .num_live = 1,
                                          .block_size = width,
                                          .window = draw(0, 1) == 1 ? draw(width, 300) : 0,
                                          .causal_block = draw(0, 1) == 1};
        const std::int64_t group = draw(1, 4);
        const HostBuffer q(DType::kF32, {width, group, 16}), k(DType::kF32, {context, 1, 16});
        const cpu::AttentionGeometry geometry(q, k, mask);
        for (std::int64_t first = 0; first < geometry.unit_rows(); first += cpu::kGroupRows) {
            const cpu::RowGroup rows{geometry, 0, 0, first, std::min(cpu::kGroupRows, geometry.unit_rows() - first)};
            std::int64_t own_keys = 0, context_keys = 0;
            for (std::int64_t key = 0; key < width; ++key) own_keys += !mask.causal_block || key <= rows.slot(rows.count - 1);
            for (std::int64_t key = 0; key < anchor.tensor().i32()[0]; ++key)
                context_keys += key >= geometry.first_visible(0, rows.slot(0));
            std::int64_t tiles = 0, seen_own = 0, seen_context = 0;
            cpu::for_each_key_tile(rows, [&](const cpu::KeyTile& tile) {
                ++tiles;
                ASSERT_GT(tile.count, 0);
                (tile.own ? seen_own : seen_context) += tile.count;
                for (std::int64_t key = 0; key < tile.count; ++key) {
                    std::int64_t looking = 0;
                    for (std::int64_t row = 0; row < rows.count; ++row) looking += tile.visible(rows, row, key);
                    ASSERT_GT(looking, 0);
                    ASSERT_TRUE(tile.masked || looking == rows.count);
                }
            });
            ASSERT_EQ(seen_own, own_keys);
            ASSERT_EQ(seen_context, context_keys);
            ASSERT_EQ(tiles, (own_keys + cpu::kKeyTile - 1) / cpu::kKeyTile + (context_keys + cpu::kKeyTile - 1) / cpu::kKeyTile);
        }
    }
}

TEST(AnchorAttentionRef, GradientIsTheDerivative) {
    for (const bool sliding : {false, true}) {
        AttentionCase c{
            .name = "", .documents = {3, 5}, .anchors = {2, 7}, .dead = 1, .width = 3, .heads = 2, .kv_heads = 1, .head_dim = 3};
        c.window = sliding ? 3 : 0;
        c.causal = sliding;
        const Problem problem(c);
        Reference in = problem.reference_inputs(), d_in;
        const std::vector<double> d_out = to_double(problem.d_out);
        const auto loss = [&] {
            std::vector<double> out, lse;
            ref::anchor_attention_forward(problem.shape, in, 0.6, out, lse);
            return testing::dot(out, d_out);
        };
        ref::anchor_attention_backward(problem.shape, in, 0.6, d_out, d_in);
        EXPECT_TRUE(testing::gradient_matches(d_in.q, in.q, loss));
        EXPECT_TRUE(testing::gradient_matches(d_in.k_context, in.k_context, loss));
        EXPECT_TRUE(testing::gradient_matches(d_in.v_context, in.v_context, loss));
        EXPECT_TRUE(testing::gradient_matches(d_in.k_block, in.k_block, loss));
        EXPECT_TRUE(testing::gradient_matches(d_in.v_block, in.v_block, loss));
    }
}

// Moves one context row (key and value) and says which (block, slot) outputs change.
std::vector<bool> influenced(const AttentionCase& c, std::int64_t row) {
    Problem base(c), moved(c);
    for (HostBuffer* buffer : {&moved.k_context, &moved.v_context}) {
        const Tensor part = buffer->tensor().slice_rows(row, 1);
        for (std::int64_t i = 0; i < part.elements(); ++i) part.f32()[i] += 1.0F;
    }
    base.forward();
    moved.forward();
    std::vector<bool> changed;
    for (std::int64_t r = 0; r < base.shape.blocks * base.shape.width; ++r) {
        const Tensor a = base.out.tensor().slice_rows(r, 1), b = moved.out.tensor().slice_rows(r, 1);
        changed.push_back(std::memcmp(a.data, b.data, a.bytes()) != 0);
    }
    return changed;
}

// Overlapping blocks in any order: a block sees nothing at or after its anchor, and nothing of other documents.
TEST(AnchorAttentionLeak, InfluenceComesFromBeforeTheAnchorInTheSameDocumentAlone) {
    const AttentionCase c{.name = "", .documents = {9, 55}, .anchors = {13, 40, 10, 12, 5}, .width = 8};
    const ref::AnchorAttentionShape s = shape_of(c);
    for (std::int64_t row = 0; row < s.context; ++row) {
        const std::vector<bool> changed = influenced(c, row);
        for (std::int64_t r = 0; r < s.blocks * s.width; ++r) {
            const auto b = static_cast<std::size_t>(r / s.width);
            EXPECT_EQ(changed[static_cast<std::size_t>(r)], row >= s.begin[b] && row < s.anchor[b]) << "row " << row << ", block " << b;
        }
    }
}

TEST(AnchorAttentionLeak, InfluenceStopsAtTheWindowExactly) {
    for (const bool causal : {false, true}) {
        const AttentionCase c{.name = "", .documents = {64}, .anchors = {40}, .width = 8, .window = 16, .causal = causal};
        for (std::int64_t row = 0; row < 64; ++row) {
            const std::vector<bool> changed = influenced(c, row);
            for (std::int64_t slot = 0; slot < 8; ++slot) {
                // The slot's own position counts as one of the window's 16: distances 1 to 15 are seen.
                const std::int64_t distance = 40 + slot - row;
                EXPECT_EQ(changed[static_cast<std::size_t>(slot)], row < 40 && distance <= 15) << "row " << row << ", slot " << slot;
            }
        }
    }
}

TEST(AnchorAttentionLeak, OwnSlotsAreSeenByTheirBlockAloneAndCausallyWhereAsked) {
    for (const bool causal : {false, true}) {
        const AttentionCase c{.name = "", .documents = {20}, .anchors = {5, 5}, .width = 6, .causal = causal};
        for (std::int64_t key = 0; key < 12; ++key) {
            Problem base(c), moved(c);
            for (HostBuffer* buffer : {&moved.k_block, &moved.v_block}) {
                const Tensor part = buffer->tensor().slice_rows(key, 1);
                for (std::int64_t i = 0; i < part.elements(); ++i) part.f32()[i] += 1.0F;
            }
            base.forward();
            moved.forward();
            for (std::int64_t r = 0; r < 12; ++r) {
                const Tensor a = base.out.tensor().slice_rows(r, 1), b = moved.out.tensor().slice_rows(r, 1);
                const bool changed = std::memcmp(a.data, b.data, a.bytes()) != 0;
                EXPECT_EQ(changed, r / 6 == key / 6 && (!causal || key <= r)) << "key " << key << ", row " << r;
            }
        }
    }
}

// The order of blocks permutes the outputs and changes no bit of them.
TEST(AnchorAttentionLeak, TheOrderOfBlocksDoesNotMatter) {
    const AttentionCase sorted{.name = "", .documents = {64}, .anchors = {10, 12, 13, 40}, .width = 8};
    AttentionCase shuffled = sorted;
    const std::vector<std::size_t> order = {2, 3, 0, 1};
    for (std::size_t i = 0; i < 4; ++i) shuffled.anchors[i] = sorted.anchors[order[i]];
    Problem a(sorted), b(shuffled);
    const auto copy_block = [](const HostBuffer& from, std::int64_t i, const HostBuffer& to, std::int64_t j) {
        const Tensor source = from.tensor().slice_rows(i * 8, 8), target = to.tensor().slice_rows(j * 8, 8);
        std::memcpy(target.data, source.data, source.bytes());
    };
    for (std::size_t i = 0; i < 4; ++i) {
        for (const auto& [from, to] : {std::pair{&a.q, &b.q}, {&a.k_block, &b.k_block}, {&a.v_block, &b.v_block}}) {
            copy_block(*from, static_cast<std::int64_t>(order[i]), *to, static_cast<std::int64_t>(i));
        }
    }
    a.forward();
    b.forward();
    for (std::size_t i = 0; i < 4; ++i) {
        const Tensor x = a.out.tensor().slice_rows(static_cast<std::int64_t>(order[i]) * 8, 8);
        const Tensor y = b.out.tensor().slice_rows(static_cast<std::int64_t>(i) * 8, 8);
        EXPECT_EQ(0, std::memcmp(x.data, y.data, x.bytes()));
    }
}

// Gradients with capacity left over equal those of exactly the valid blocks, though the dead rows' d_out is not zero.
TEST(AnchorAttentionLeak, DeadCapacityAddsNothingToGradients) {
    AttentionCase exact{.name = "", .documents = {30, 20}, .anchors = {4, 25, 33}};
    AttentionCase spare = exact;
    spare.dead = 5;
    Problem a(exact), b(spare);
    for (const auto& [from, to] : {std::pair{&a.q, &b.q},
                                   {&a.k_block, &b.k_block},
                                   {&a.v_block, &b.v_block},
                                   {&a.d_out, &b.d_out},
                                   {&a.k_context, &b.k_context},
                                   {&a.v_context, &b.v_context}}) {
        std::memcpy(to->tensor().data, from->tensor().data, from->tensor().bytes());
    }
    for (Problem* problem : {&a, &b}) {
        problem->forward();
        problem->backward();
    }
    EXPECT_EQ(0, std::memcmp(a.d_k_context.tensor().data, b.d_k_context.tensor().data, a.d_k_context.tensor().bytes()));
    EXPECT_EQ(0, std::memcmp(a.d_v_context.tensor().data, b.d_v_context.tensor().data, a.d_v_context.tensor().bytes()));
    EXPECT_EQ(0, std::memcmp(a.d_q.tensor().data, b.d_q.tensor().data, a.d_q.tensor().bytes()));
}

TEST(AnchorAttentionRange, ScoresOfAThousandDoNotOverflow) {
    Problem problem({.name = "", .documents = {100}, .anchors = {99}, .width = 4}, 1, 30.0);
    problem.forward();
    problem.backward();
    for (const HostBuffer* buffer : {&problem.out, &problem.lse, &problem.d_q, &problem.d_k_context}) {
        for (const float value : testing::f32_span(*buffer)) ASSERT_TRUE(std::isfinite(value));
    }
    Reference in = problem.reference_inputs();
    std::vector<double> out, lse;
    ref::anchor_attention_forward<double>(problem.shape, in, problem.scale, out, lse);
    EXPECT_TRUE(close(problem.lse, lse, testing::kOpF32));
}

TEST(AnchorAttentionChecks, AMaskThatLeavesTheContextIsRefused) {
    Problem problem({.name = "", .documents = {10}, .anchors = {5}});
    problem.anchor.tensor().i32()[0] = 11;
    EXPECT_THROW(problem.forward(), Error);
    problem.anchor.tensor().i32()[0] = 5;
    problem.begin.tensor().i32()[0] = 6;
    EXPECT_THROW(problem.forward(), Error);
}

}  // namespace
}  // namespace dflash
