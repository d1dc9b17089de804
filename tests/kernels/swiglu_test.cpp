// SPDX-License-Identifier: MIT
#include "kernels/swiglu.h"

#include <gtest/gtest.h>

#include "kernels/ref/swiglu.h"
#include "support/close.h"
#include "support/data.h"
#include "support/device_case.h"
#include "support/gradcheck.h"

namespace dflash {
namespace {

using testing::close;
using testing::poisoned_f32;
using testing::random_f32;
using testing::to_double;

class Swiglu : public testing::DeviceCases<std::pair<std::int64_t, std::int64_t>> {
protected:
    Shape shape_{c_.first, c_.second};
    HostBuffer gate_ = random_f32(shape_, 1, 3.0), up_ = random_f32(shape_, 2), dy_ = random_f32(shape_, 3);
    void SetUp() override {
        DeviceCases::SetUp();
        if (IsSkipped()) return;
        gate_in_ = in_out(gate_), up_in_ = in_out(up_), dy_in_ = in_out(dy_);
        gate64_ = to_double(gate_), up64_ = to_double(up_), dy64_ = to_double(dy_);
    }
    Tensor gate_in_, up_in_, dy_in_;
    std::vector<double> gate64_, up64_, dy64_;
};

TEST_P(Swiglu, ForwardMatchesTheReference) {
    const HostBuffer y = poisoned_f32(shape_);
    swiglu_forward(context(), {gate_in_, up_in_, out(y)});
    finish();
    std::vector<double> ref(gate64_.size());
    ref::swiglu_forward(gate64_.data(), up64_.data(), ref.data(), shape_.elements());
    EXPECT_TRUE(close(y, ref, tolerance(testing::kOpF32)));
    swiglu_forward(context(), {gate_in_, up_in_, gate_in_});
    finish();
    EXPECT_TRUE(close(gate_, ref, tolerance(testing::kOpF32)));
}

// All outputs over inputs: d_gate in gate, d_up in up, y in d_y.
TEST_P(Swiglu, BackwardInPlaceMatchesTheReferenceAndMakesTheOutputAgain) {
    std::vector<double> y_ref(gate64_.size()), d_gate(gate64_.size()), d_up(gate64_.size());
    ref::swiglu_forward(gate64_.data(), up64_.data(), y_ref.data(), shape_.elements());
    ref::swiglu_backward(dy64_.data(), gate64_.data(), up64_.data(), d_gate.data(), d_up.data(), shape_.elements());
    swiglu_backward(context(), {dy_in_, gate_in_, up_in_, gate_in_, up_in_, dy_in_});
    finish();
    EXPECT_TRUE(close(gate_, d_gate, tolerance(testing::kGradientF32)));
    EXPECT_TRUE(close(up_, d_up, tolerance(testing::kGradientF32)));
    EXPECT_TRUE(close(dy_, y_ref, tolerance(testing::kOpF32)));
}

DFLASH_CASES_ON_EACH_DEVICE(Shapes, Swiglu, ::testing::Values(std::pair{1, 1}, std::pair{3, 17}, std::pair{130, 96}, std::pair{7, 1501}));

TEST(SwigluRef, GradientIsTheDerivative) {
    std::vector<double> gate = to_double(random_f32({9}, 1)), up = to_double(random_f32({9}, 2));
    const std::vector<double> dy = to_double(random_f32({9}, 3));
    const auto loss = [&] {
        std::vector<double> y(9);
        ref::swiglu_forward(gate.data(), up.data(), y.data(), 9);
        return testing::dot(y, dy);
    };
    std::vector<double> d_gate(9), d_up(9);
    ref::swiglu_backward(dy.data(), gate.data(), up.data(), d_gate.data(), d_up.data(), 9);
    EXPECT_TRUE(testing::gradient_matches(d_gate, gate, loss));
    EXPECT_TRUE(testing::gradient_matches(d_up, up, loss));
}

class SwigluRange : public testing::DeviceTest {};

TEST_P(SwigluRange, LargeGatesNeitherOverflowNorHideNan) {
    const HostBuffer gate = random_f32({1, 6}, 1);
    const float values[] = {-1e4F, -200.0F, 0.0F, 200.0F, 1e4F, std::numeric_limits<float>::quiet_NaN()};
    std::copy(std::begin(values), std::end(values), gate.tensor().f32());
    const HostBuffer ones = random_f32({1, 6}, 1, 0.0, 1.0);
    const HostBuffer y = poisoned_f32({1, 6});
    swiglu_forward(context(), {in(gate), in(ones), out(y)});
    finish();
    const float* p = y.tensor().f32();
    const std::vector<double> expected = {0.0, 0.0, 0.0, 200.0, 1e4};
    EXPECT_TRUE(close(std::span<const float>(p, 5), std::span<const double>(expected), tolerance(testing::kOpF32)));
    EXPECT_TRUE(std::isnan(p[5]));
}

DFLASH_ON_EACH_DEVICE(SwigluRange);

class SigmoidGate : public testing::DeviceCases<std::int64_t> {};

TEST_P(SigmoidGate, InterleavedGatesMatchTheReference) {
    const std::int64_t rows = 5, heads = 3, head_dim = c_;
    const HostBuffer both = random_f32({rows, heads, 2 * head_dim}, 1, 2.0);
    const HostBuffer y = random_f32({rows, heads, head_dim}, 2);
    Tensor gate = in(both);
    const Tensor y_in = in_out(y);
    std::vector<double> ref = to_double(y);
    const std::vector<double> both64 = to_double(both);
    ref::sigmoid_gate_forward(both64.data() + head_dim, heads * 2 * head_dim, 2 * head_dim, ref.data(), rows, heads, head_dim);
    gate.data = static_cast<char*>(gate.data) + static_cast<std::size_t>(head_dim) * dtype_bytes(gate.dtype);
    sigmoid_gate_forward(context(), {gate, heads * 2 * head_dim, 2 * head_dim, y_in});
    finish();
    EXPECT_TRUE(close(y, ref, tolerance(testing::kOpF32)));
}

DFLASH_CASES_ON_EACH_DEVICE(HeadDims, SigmoidGate, ::testing::Values(1, 7, 24, 256));

}  // namespace
}  // namespace dflash
