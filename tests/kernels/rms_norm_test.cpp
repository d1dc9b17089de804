// SPDX-License-Identifier: MIT
#include "kernels/rms_norm.h"

#include <gtest/gtest.h>

#include "kernels/ref/rms_norm.h"
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

struct NormCase {
    std::int64_t rows, columns;
    float eps, offset;
};
class RmsNorm : public testing::DeviceCases<NormCase> {
protected:
    std::size_t size() const { return static_cast<std::size_t>(c_.rows * c_.columns); }
    HostBuffer x_ = random_f32({c_.rows, c_.columns}, 1);
    HostBuffer w_ = random_f32({c_.columns}, 2, 0.3, 1.0 - c_.offset);
    HostBuffer dy_ = random_f32({c_.rows, c_.columns}, 3);
    void SetUp() override {
        DeviceCases::SetUp();
        if (!IsSkipped()) x_in_ = in_out(x_), w_in_ = in(w_), dy_in_ = in_out(dy_);
    }
    Tensor x_in_, w_in_, dy_in_;
};

TEST_P(RmsNorm, ForwardAndBackwardMatchTheReference) {
    const HostBuffer y = poisoned_f32({c_.rows, c_.columns});
    const HostBuffer rstd = poisoned_f32({c_.rows});
    const Tensor rstd_out = out(rstd, testing::kAsIs);
    rms_norm_forward(
        context(), {.x = x_in_, .weight = w_in_, .eps = c_.eps, .weight_offset = c_.offset, .residual = {}, .y = out(y), .rstd = rstd_out});
    finish();
    const std::vector<double> x = to_double(x_), w = to_double(w_), dy = to_double(dy_);
    std::vector<double> y_ref(size()), rstd_ref(static_cast<std::size_t>(c_.rows));
    ref::rms_norm_forward<double>(x.data(), w.data(), y_ref.data(), rstd_ref.data(), c_.rows, c_.columns, c_.eps, c_.offset);
    EXPECT_TRUE(close(y, y_ref, tolerance(testing::kOpF32)));
    EXPECT_TRUE(close(rstd, rstd_ref, tolerance(testing::kOpF32, testing::kAsIs)));

    const HostBuffer dx = random_f32({c_.rows, c_.columns}, 4);
    const HostBuffer dw = random_f32({c_.columns}, 5);
    const Tensor dx_out = in_out(dx), dw_out = in_out(dw, testing::kAsIs);
    std::vector<double> dx_ref = to_double(dx), dw_ref = to_double(dw);
    rms_norm_backward(
        context(),
        {.d_y = dy_in_, .x = x_in_, .weight = w_in_, .rstd = rstd_out, .weight_offset = c_.offset, .d_x = dx_out, .d_weight = dw_out});
    finish();
    ref::rms_norm_backward<double>(dy.data(), x.data(), w.data(), dx_ref.data(), dw_ref.data(), c_.rows, c_.columns, c_.eps, c_.offset);
    EXPECT_TRUE(close(dx, dx_ref, tolerance(testing::kGradientF32)));
    EXPECT_TRUE(close(dw, dw_ref, tolerance(testing::kGradientF32, testing::kAsIs)));
}

TEST_P(RmsNorm, OverwritingBackwardReplacesWhatWasThereAndMayWriteOverItsInput) {
    const HostBuffer y = poisoned_f32({c_.rows, c_.columns});
    const HostBuffer rstd = poisoned_f32({c_.rows});
    const Tensor rstd_out = out(rstd, testing::kAsIs);
    rms_norm_forward(
        context(), {.x = x_in_, .weight = w_in_, .eps = c_.eps, .weight_offset = c_.offset, .residual = {}, .y = out(y), .rstd = rstd_out});
    finish();
    std::vector<double> dx_ref(size(), 0.0), dw_ref(static_cast<std::size_t>(c_.columns), 0.0);
    ref::rms_norm_backward<double>(to_double(dy_).data(), to_double(x_).data(), to_double(w_).data(), dx_ref.data(), dw_ref.data(), c_.rows,
                                   c_.columns, c_.eps, c_.offset);
    const HostBuffer dw(DType::kF32, {c_.columns});
    rms_norm_backward(context(), {.d_y = dy_in_,
                                  .x = x_in_,
                                  .weight = w_in_,
                                  .rstd = rstd_out,
                                  .weight_offset = c_.offset,
                                  .d_x = dy_in_,
                                  .write = Write::kOverwrite,
                                  .d_weight = in_out(dw, testing::kAsIs)});
    finish();
    EXPECT_TRUE(close(dy_, dx_ref, tolerance(testing::kGradientF32)));
    EXPECT_TRUE(close(dw, dw_ref, tolerance(testing::kGradientF32, testing::kAsIs)));
}

TEST_P(RmsNorm, TheResidualIsAddedFirstAndKept) {
    const HostBuffer residual = random_f32({c_.rows, c_.columns}, 6);
    const Tensor residual_in = in(residual);
    std::vector<double> sum = to_double(x_);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += to_double(residual)[i];
    const HostBuffer y = poisoned_f32({c_.rows, c_.columns});
    rms_norm_forward(
        context(),
        {.x = x_in_, .weight = w_in_, .eps = c_.eps, .weight_offset = c_.offset, .residual = residual_in, .y = out(y), .rstd = {}});
    finish();
    std::vector<double> y_ref(size());
    ref::rms_norm_forward<double>(sum.data(), to_double(w_).data(), y_ref.data(), nullptr, c_.rows, c_.columns, c_.eps, c_.offset);
    EXPECT_TRUE(close(x_, sum, tolerance(testing::kOpF32)));
    EXPECT_TRUE(close(y, y_ref, tolerance(testing::kOpF32)));
}

class GatedRmsNorm : public testing::DeviceCases<NormCase> {
protected:
    std::size_t size() const { return static_cast<std::size_t>(c_.rows * c_.columns); }
};

TEST_P(GatedRmsNorm, KindsMatchTheReference) {
    for (const bool sigmoid_gate : {false, true}) {
        const HostBuffer x = random_f32({c_.rows, c_.columns}, 1);
        const HostBuffer z = random_f32({c_.rows, c_.columns}, 7, 3.0);
        const HostBuffer w = random_f32({c_.columns}, 2, 0.3, 1.0 - c_.offset);
        const HostBuffer y = poisoned_f32({c_.rows, c_.columns});
        const Tensor x_in = in_out(x), z_in = in(z), w_in = in(w, testing::kAsIs);
        gated_rms_norm_forward(context(), {x_in, z_in, w_in, c_.eps, sigmoid_gate, out(y)});
        std::vector<double> ref(size());
        ref::gated_rms_norm_forward<double>(to_double(x).data(), to_double(z).data(), to_double(w).data(), ref.data(), c_.rows, c_.columns,
                                            c_.eps, sigmoid_gate);
        gated_rms_norm_forward(context(), {x_in, z_in, w_in, c_.eps, sigmoid_gate, x_in});  // in place
        finish();
        EXPECT_TRUE(close(y, ref, tolerance(testing::kOpF32)));
        EXPECT_TRUE(close(x, ref, tolerance(testing::kOpF32)));
        forget();
    }
}

const auto kShapes = ::testing::Values(NormCase{1, 3, 1e-6F, 0}, NormCase{3, 15, 1e-6F, 1}, NormCase{5, 64, 0.3F, 0},
                                       NormCase{7, 257, 1e-5F, 1}, NormCase{130, 256, 1e-6F, 0});
DFLASH_CASES_ON_EACH_DEVICE(Shapes, RmsNorm, kShapes);
DFLASH_CASES_ON_EACH_DEVICE(Shapes, GatedRmsNorm, kShapes);

TEST(RmsNormRef, GradientIsTheDerivative) {
    const std::int64_t rows = 2, columns = 5;
    const double eps = 1e-3, offset = 1;
    std::vector<double> x = to_double(random_f32({rows, columns}, 1)), w = to_double(random_f32({columns}, 2));
    const std::vector<double> dy = to_double(random_f32({rows, columns}, 3));
    const auto loss = [&] {
        std::vector<double> y(dy.size());
        ref::rms_norm_forward<double>(x.data(), w.data(), y.data(), nullptr, rows, columns, eps, offset);
        return testing::dot(y, dy);
    };
    std::vector<double> dx(x.size(), 0.0), dw(w.size(), 0.0);
    ref::rms_norm_backward<double>(dy.data(), x.data(), w.data(), dx.data(), dw.data(), rows, columns, eps, offset);
    EXPECT_TRUE(testing::gradient_matches(dx, x, loss));
    EXPECT_TRUE(testing::gradient_matches(dw, w, loss));
}

// Zero-centred weights of zero are the identity gain; a row of zeros stays zero.
TEST(RmsNormMeaning, ZeroWeightsWithOffsetOneAreTheIdentityGain) {
    const Context context;
    const HostBuffer x = random_f32({2, 33}, 1);
    const HostBuffer zero(DType::kF32, {33});
    const HostBuffer ones = random_f32({33}, 1, 0.0, 1.0);
    const HostBuffer a = poisoned_f32({2, 33}), b = poisoned_f32({2, 33});
    rms_norm_forward(context, {.x = x, .weight = zero, .weight_offset = 1, .residual = {}, .y = a, .rstd = {}});
    rms_norm_forward(context, {.x = x, .weight = ones, .weight_offset = 0, .residual = {}, .y = b, .rstd = {}});
    EXPECT_TRUE(close(a, to_double(b), testing::kOpF32));
    const HostBuffer zeros(DType::kF32, {2, 33});
    rms_norm_forward(context, {.x = zeros, .weight = ones, .residual = {}, .y = a, .rstd = {}});
    for (const float value : testing::f32_span(a)) EXPECT_EQ(value, 0.0F);
}

TEST(RmsNormMeaning, ANanStaysInItsRow) {
    const Context context;
    const HostBuffer x = random_f32({2, 20}, 1);
    x.tensor().f32()[3] = std::numeric_limits<float>::quiet_NaN();
    const HostBuffer w = random_f32({20}, 2);
    const HostBuffer y = poisoned_f32({2, 20});
    rms_norm_forward(context, {.x = x, .weight = w, .residual = {}, .y = y, .rstd = {}});
    EXPECT_TRUE(std::isnan(y.tensor().f32()[19]));
    EXPECT_FALSE(std::isnan(y.tensor().f32()[20]));
}

TEST(RmsNormChecks, NoRowsAreFineAndWrongSizesAreRefused) {
    const Context context;
    const HostBuffer none = random_f32({0, 8}, 1);
    const HostBuffer w = random_f32({8}, 2);
    EXPECT_NO_THROW(rms_norm_forward(context, {.x = none, .weight = w, .residual = {}, .y = none, .rstd = {}}));
    const HostBuffer x = random_f32({2, 8}, 1);
    const HostBuffer y = random_f32({2, 7}, 1);
    EXPECT_THROW(rms_norm_forward(context, {.x = x, .weight = w, .residual = {}, .y = y, .rstd = {}}), Error);
}

}  // namespace
}  // namespace dflash
