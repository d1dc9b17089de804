// SPDX-License-Identifier: MIT
#include "kernels/muon.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/elementwise.h"
#include "kernels/ref/muon.h"
#include "support/close.h"
#include "support/data.h"

namespace dflash {
namespace {

using testing::close;
using testing::f64_tensor;
using testing::poisoned_f32;
using testing::random_f32;
using testing::to_double;

struct Scratch {
    explicit Scratch(const Shape& shape)
        : size(muon_scratch_size({shape})),
          x(poisoned_f32({size.matrix_elements})),
          next(poisoned_f32({size.matrix_elements})),
          gram(poisoned_f32({size.gram_elements})),
          gram_squared(poisoned_f32({size.gram_elements})) {}
    MuonScratch views() const { return {x, next, gram, gram_squared}; }
    MuonScratchSize size;
    HostBuffer x, next, gram, gram_squared;
};

class MuonShapes : public ::testing::TestWithParam<Shape> {};

TEST_P(MuonShapes, StepsMatchTheReference) {
    const Shape shape = GetParam();
    const Context context;
    const Scratch scratch(shape);
    const HostBuffer weight = random_f32(shape, 1);
    const HostBuffer momentum = random_f32(shape, 2, 0.1);
    std::vector<double> ref_weight = to_double(weight);
    std::vector<double> ref_momentum = to_double(momentum);
    for (std::uint64_t step = 0; step < 3; ++step) {
        const HostBuffer gradient = random_f32(shape, 10 + step);
        muon_step(context, {.weight = weight,
                            .remainder = {},
                            .gradient = gradient,
                            .momentum = momentum,
                            .scratch = scratch.views(),
                            .lr = 0.01F,
                            .weight_decay = 0.1F,
                            .grad_scale = f64_tensor({0.25})});
        ref::muon_step(ref_weight, to_double(gradient), ref_momentum, shape[0], shape[1],
                       ref::MuonSettings<double>{0.01F, 0.95F, 0.1F, 0.25});
    }
    EXPECT_TRUE(close(weight, ref_weight, testing::kGradientF32));
    EXPECT_TRUE(close(momentum, ref_momentum, testing::kGradientF32));
}

INSTANTIATE_TEST_SUITE_P(Sizes, MuonShapes,
                         ::testing::Values(Shape{1, 1}, Shape{1, 7}, Shape{7, 1}, Shape{5, 5}, Shape{17, 33}, Shape{33, 17}, Shape{64, 64},
                                           Shape{100, 40}, Shape{40, 100}));

// What the rounds are for: every direction of the update gets about the same size, however uneven the gradient.
TEST(Muon, AnUnevenGradientMovesEveryDirectionAlike) {
    const std::int64_t n = 24;
    const Shape shape = {n, n};
    const Context context;
    const Scratch scratch(shape);
    const HostBuffer weight(DType::kF32, shape), momentum(DType::kF32, shape), gradient(DType::kF32, shape);
    for (std::int64_t i = 0; i < n; ++i) gradient.tensor().f32()[i * n + i] = static_cast<float>(1 + i);  // singular values 1 .. 24
    muon_step(context, {.weight = weight,
                        .remainder = {},
                        .gradient = gradient,
                        .momentum = momentum,
                        .scratch = scratch.views(),
                        .lr = 1.0F,
                        .grad_scale = f64_tensor({1.0})});
    const float size = 0.2F * std::sqrt(static_cast<float>(n));
    for (std::int64_t i = 0; i < n; ++i) {
        const float moved = -weight.tensor().f32()[i * n + i] / size;
        EXPECT_GT(moved, 0.6F) << i;
        EXPECT_LT(moved, 1.3F) << i;
    }
}

TEST(Muon, AZeroGradientChangesNothing) {
    const Shape shape = {6, 9};
    const Context context;
    const Scratch scratch(shape);
    const HostBuffer weight = random_f32(shape, 3), momentum(DType::kF32, shape), gradient(DType::kF32, shape);
    const std::vector<double> before = to_double(weight);
    muon_step(context, {.weight = weight,
                        .remainder = {},
                        .gradient = gradient,
                        .momentum = momentum,
                        .scratch = scratch.views(),
                        .lr = 0.1F,
                        .grad_scale = f64_tensor({1.0})});
    EXPECT_EQ(to_double(weight), before);
}

TEST(Axpby, WithBetaZeroIgnoresWhatWasThere) {
    const Context context;
    for (const std::int64_t n : {1, 15, 16, 17, 9001}) {
        const HostBuffer x = random_f32({n}, 4), y = poisoned_f32({n});
        axpby(context, -1.5F, x, 0.0F, y);
        std::vector<double> expected = to_double(x);
        for (double& value : expected) value *= -1.5;
        EXPECT_TRUE(close(y, expected, testing::kOpF32)) << n;
        axpby(context, 2.0F, x, 0.5F, y);
        for (double& value : expected) value *= 0.5 - 2.0 / 1.5;
        EXPECT_TRUE(close(y, expected, testing::kOpF32)) << n;
    }
}

}  // namespace
}  // namespace dflash
