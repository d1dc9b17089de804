// SPDX-License-Identifier: MIT
#include "tensor/plan.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "base/rng.h"
#include "tensor/arena.h"

namespace dflash {
namespace {

BufferSpec bytes_buffer(const std::string& name, std::int64_t bytes, int first, int last) {
    return {name, DType::kU8, {bytes}, Category::kActivations, {first, last}};
}

bool share_bytes(const PlacedBuffer& a, const PlacedBuffer& b) {
    return a.offset < b.offset + b.spec.bytes() && b.offset < a.offset + a.spec.bytes();
}

bool alive_together(const PlacedBuffer& a, const PlacedBuffer& b) {
    return a.spec.lifetime.first <= b.spec.lifetime.last && b.spec.lifetime.first <= a.spec.lifetime.last;
}

TEST(Plan, BuffersOfSeparatePhasesShareMemory) {
    const Plan plan = make_plan({"a", "b"}, {bytes_buffer("x", 1000, 0, 0), bytes_buffer("y", 1000, 1, 1)});
    EXPECT_EQ(plan.arena_bytes, 1024U);
    EXPECT_EQ(plan.buffers[0].offset, plan.buffers[1].offset);
}

TEST(Plan, PeakIsPersistentPlusLargestPhase) {
    const Plan plan = make_plan({"a", "b", "c"}, {bytes_buffer("weights", 512, 0, 2), bytes_buffer("x", 1024, 0, 0),
                                                  bytes_buffer("y", 2048, 1, 1), bytes_buffer("z", 256, 2, 2)});
    EXPECT_EQ(plan.arena_bytes, 512U + 2048U);
    EXPECT_EQ(plan.lower_bound_bytes(), plan.arena_bytes);
    EXPECT_EQ(plan.phase_bytes(0), 1536U);
    EXPECT_EQ(plan.category_bytes(2, Category::kActivations), 768U);
    EXPECT_EQ(plan.category_bytes(2, Category::kTarget), 0U);
}

TEST(Plan, RandomPlansNeverOverlapAndStayNearTheLowerBound) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        Philox rng(seed, 0);
        const int num_phases = 1 + static_cast<int>(rng.next_below(20));
        std::vector<std::string> phases(static_cast<std::size_t>(num_phases), "phase");
        std::vector<BufferSpec> specs;
        for (int i = 0; i < 120; ++i) {
            const int first = static_cast<int>(rng.next_below(static_cast<std::uint64_t>(num_phases)));
            const int last = first + static_cast<int>(rng.next_below(static_cast<std::uint64_t>(num_phases - first)));
            specs.push_back(bytes_buffer("b" + std::to_string(i), static_cast<std::int64_t>(rng.next_below(100000)), first, last));
        }
        const Plan plan = make_plan(phases, specs);
        for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
            EXPECT_EQ(plan.buffers[i].offset % kPlanAlignment, 0U);
            EXPECT_LE(plan.buffers[i].offset + plan.buffers[i].spec.bytes(), plan.arena_bytes);
            for (std::size_t j = 0; j < i; ++j) {
                EXPECT_FALSE(alive_together(plan.buffers[i], plan.buffers[j]) && share_bytes(plan.buffers[i], plan.buffers[j]))
                    << plan.buffers[i].spec.name << " over " << plan.buffers[j].spec.name;
            }
        }
        EXPECT_GE(plan.arena_bytes, plan.lower_bound_bytes());
        EXPECT_LE(static_cast<double>(plan.arena_bytes), 1.1 * static_cast<double>(plan.lower_bound_bytes()));
    }
}

TEST(Plan, RefusesRepeatedNamesAndBadLifetimes) {
    EXPECT_THROW(make_plan({"a"}, {bytes_buffer("x", 1, 0, 0), bytes_buffer("x", 1, 0, 0)}), Error);
    EXPECT_THROW(make_plan({"a"}, {bytes_buffer("x", 1, 0, 1)}), Error);
    EXPECT_THROW(make_plan({"a"}, {bytes_buffer("x", 1, -1, 0)}), Error);
}

TEST(Arena, ViewsLieWhereThePlanSays) {
    const Plan plan = make_plan({"a", "b"}, {{"w", DType::kF32, {3, 5}, Category::kWeights, {0, 1}}, bytes_buffer("x", 7, 0, 0)});
    const Arena arena(Device{}, plan);
    EXPECT_EQ(arena.bytes(), plan.arena_bytes);
    const Tensor w = arena.tensor("w");
    EXPECT_EQ(w.shape, (Shape{3, 5}));
    EXPECT_EQ(static_cast<char*>(arena.tensor("x").data) - static_cast<char*>(w.data),
              static_cast<std::ptrdiff_t>(plan.buffers[1].offset) - static_cast<std::ptrdiff_t>(plan.buffers[0].offset));
    EXPECT_THROW(arena.tensor("unplanned"), Error);
}

TEST(Tensor, SlicesAndViewsStayInside) {
    const Plan plan = make_plan({"a"}, {{"w", DType::kF32, {4, 6}, Category::kWeights, {0, 0}}});
    const Arena arena(Device{}, plan);
    const Tensor w = arena.tensor("w");
    EXPECT_EQ(w.slice_rows(1, 2).f32(), w.f32() + 6);
    EXPECT_EQ(w.slice_rows(4, 0).rows(), 0);
    EXPECT_THROW(w.slice_rows(3, 2), Error);
    EXPECT_THROW(w.view({5, 5}), Error);
    EXPECT_THROW(w.i32(), Error);
}

}  // namespace
}  // namespace dflash
