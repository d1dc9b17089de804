// SPDX-License-Identifier: MIT
#include "kernels/muon.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "kernels/elementwise.h"
#include "kernels/ref/muon.h"
#include "support/close.h"
#include "support/data.h"
#include "support/device_case.h"

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
    MuonScratchSize size;
    HostBuffer x, next, gram, gram_squared;
};

// One matrix, its momentum and scratch on the device.
template <typename Base>
class MuonFixture : public Base {
protected:
    void place(const HostBuffer& weight, const HostBuffer& momentum) {
        const Scratch& s = scratch_.emplace(weight.tensor().shape);
        params_.weight = this->in_out(weight, testing::kAsIs);
        params_.momentum = this->in_out(momentum, testing::kAsIs);
        params_.scratch = {this->out(s.x), this->out(s.next), this->out(s.gram), this->out(s.gram_squared)};
    }
    void step(const HostBuffer& gradient, double grad_scale, float lr, float weight_decay) {
        const HostBuffer scale = f64_tensor({grad_scale});
        params_.gradient = this->in(gradient);
        params_.grad_scale = this->in(scale);
        params_.lr = lr;
        params_.weight_decay = weight_decay;
        muon_step(this->context(), params_);
        this->finish();
    }

private:
    std::optional<Scratch> scratch_;
    MuonParams params_;
};
class MuonShapes : public MuonFixture<testing::DeviceCases<Shape>> {};
class Muon : public MuonFixture<testing::DeviceTest> {};

// Small weights, so that three steps make up most of them.
TEST_P(MuonShapes, StepsMatchTheReference) {
    const HostBuffer weight = random_f32(c_, 1, 0.005);
    const HostBuffer momentum = random_f32(c_, 2, 0.1);
    place(weight, momentum);
    std::vector<double> ref_weight = to_double(weight);
    std::vector<double> ref_momentum = to_double(momentum);
    for (std::uint64_t number = 0; number < 3; ++number) {
        const HostBuffer gradient = random_f32(c_, 10 + number);
        step(gradient, 0.25, 0.01F, 0.1F);
        ref::muon_step(ref_weight, to_double(gradient), ref_momentum, c_[0], c_[1], ref::MuonSettings<double>{0.01F, 0.95F, 0.1F, 0.25});
    }
    EXPECT_TRUE(close(weight, ref_weight, tolerance(testing::kModelF32)));
    EXPECT_TRUE(close(momentum, ref_momentum, tolerance(testing::kGradientF32, testing::kAsIs)));
}

DFLASH_CASES_ON_EACH_DEVICE(Sizes, MuonShapes,
                            ::testing::Values(Shape{1, 1}, Shape{1, 7}, Shape{7, 1}, Shape{5, 5}, Shape{17, 33}, Shape{33, 17},
                                              Shape{64, 64}, Shape{100, 40}, Shape{40, 100}));

// What the rounds are for: every direction of the update gets about the same size, however uneven the gradient.
TEST_P(Muon, AnUnevenGradientMovesEveryDirectionAlike) {
    const std::int64_t n = 24;
    const Shape shape = {n, n};
    const HostBuffer weight(DType::kF32, shape), momentum(DType::kF32, shape), gradient(DType::kF32, shape);
    for (std::int64_t i = 0; i < n; ++i) gradient.tensor().f32()[i * n + i] = static_cast<float>(1 + i);  // singular values 1 .. 24
    place(weight, momentum);
    step(gradient, 1.0, 1.0F, 0.0F);
    const float size = 0.2F * std::sqrt(static_cast<float>(n));
    for (std::int64_t i = 0; i < n; ++i) {
        const float moved = -weight.tensor().f32()[i * n + i] / size;
        EXPECT_GT(moved, 0.6F) << i;
        EXPECT_LT(moved, 1.3F) << i;
    }
}

TEST_P(Muon, AZeroGradientAndAScaleThatIsNotFiniteChangeNothing) {
    const Shape shape = {6, 9};
    const HostBuffer weight = random_f32(shape, 3), momentum(DType::kF32, shape), zero(DType::kF32, shape);
    const HostBuffer gradient = random_f32(shape, 4);
    const std::vector<double> before = to_double(weight), still = to_double(momentum);
    place(weight, momentum);
    step(zero, 1.0, 0.1F, 0.0F);
    EXPECT_EQ(to_double(weight), before);
    step(gradient, std::numeric_limits<double>::quiet_NaN(), 0.1F, 0.1F);
    EXPECT_EQ(to_double(weight), before);
    EXPECT_EQ(to_double(momentum), still);
}

DFLASH_ON_EACH_DEVICE(Muon);

class Axpby : public testing::DeviceTest {};

TEST_P(Axpby, WithBetaZeroIgnoresWhatWasThere) {
    for (const testing::Stored stored : {testing::kWorking, testing::kAsIs}) {
        for (const std::int64_t n : {1, 15, 16, 17, 9001}) {
            const HostBuffer x = random_f32({n}, 4), y = poisoned_f32({n});
            const Tensor x_in = in(x, stored), y_out = out(y, stored);
            axpby(context(), -1.5F, x_in, 0.0F, y_out);
            finish();
            std::vector<double> expected = to_double(x);
            for (double& value : expected) value *= -1.5;
            EXPECT_TRUE(close(y, expected, tolerance(testing::kOpF32, stored))) << n;
            axpby(context(), 2.0F, x_in, 0.5F, y_out);
            finish();
            for (double& value : expected) value *= 0.5 - 2.0 / 1.5;
            EXPECT_TRUE(close(y, expected, tolerance(testing::kOpF32, stored))) << n;
            forget();
        }
    }
}

DFLASH_ON_EACH_DEVICE(Axpby);

}  // namespace
}  // namespace dflash
