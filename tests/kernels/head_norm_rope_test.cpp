// SPDX-License-Identifier: MIT
#include "kernels/head_norm_rope.h"

#include <gtest/gtest.h>

#include "kernels/ref/head_norm_rope.h"
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

struct RopeCase {
    std::int64_t rows, heads, head_dim, rotary;
    float offset;
};

// Positions with gaps and repeats, and an angle table long enough for them.
struct Angles {
    explicit Angles(const RopeCase& c)
        : cos(DType::kF32, {4 * c.rows + 1, c.rotary / 2}), sin(DType::kF32, {4 * c.rows + 1, c.rotary / 2}) {
        std::vector<std::int32_t> list;
        for (std::int64_t r = 0; r < c.rows; ++r) list.push_back(static_cast<std::int32_t>((r * 7) % (4 * c.rows + 1)));
        positions = testing::i32_tensor(list);
        for (std::int64_t i = 0; i < cos.tensor().elements(); ++i) {
            const double angle = static_cast<double>(i / (c.rotary / 2)) / (1.0 + static_cast<double>(i % (c.rotary / 2)));
            cos.tensor().f32()[i] = static_cast<float>(std::cos(angle));
            sin.tensor().f32()[i] = static_cast<float>(std::sin(angle));
        }
    }
    HostBuffer cos, sin, positions;
};

class HeadNormRope : public testing::DeviceCases<RopeCase> {
protected:
    ref::HeadNormRopeShape shape() const { return {c_.rows, c_.heads, c_.head_dim, c_.rotary / 2}; }
    void SetUp() override {
        DeviceCases::SetUp();
        if (IsSkipped()) return;
        x_in_ = in_out(x_), w_in_ = in(w_), positions_in_ = in(angles_.positions);
        cos_in_ = in(angles_.cos, testing::kAsIs), sin_in_ = in(angles_.sin, testing::kAsIs);
    }
    Tensor x_in_, w_in_, positions_in_, cos_in_, sin_in_;
    Angles angles_{c_};
    HostBuffer x_ = random_f32({c_.rows, c_.heads, c_.head_dim}, 1);
    HostBuffer w_ = random_f32({c_.head_dim}, 2, 0.3, 1.0 - c_.offset);
    float eps_ = 1e-5F;
    std::vector<double> cos64_ = to_double(angles_.cos), sin64_ = to_double(angles_.sin);
};

TEST_P(HeadNormRope, ForwardAndBackwardMatchTheReference) {
    const HostBuffer y = poisoned_f32(x_.tensor().shape);
    const HostBuffer rstd = poisoned_f32({c_.rows, c_.heads});
    const Tensor rstd_out = out(rstd, testing::kAsIs);
    head_norm_rope_forward(context(), {.x = x_in_,
                                       .weight = w_in_,
                                       .eps = eps_,
                                       .weight_offset = c_.offset,
                                       .positions = positions_in_,
                                       .cos = cos_in_,
                                       .sin = sin_in_,
                                       .y = out(y),
                                       .rstd = rstd_out});
    finish();
    const std::vector<double> x = to_double(x_), w = to_double(w_);
    std::vector<double> ref(x.size());
    const std::int32_t* positions = angles_.positions.tensor().i32();
    ref::head_norm_rope_forward<double>(shape(), x.data(), w.data(), eps_, c_.offset, positions, cos64_.data(), sin64_.data(), ref.data());
    EXPECT_TRUE(close(y, ref, tolerance(testing::kOpF32)));

    const HostBuffer dy = random_f32(x_.tensor().shape, 3);
    const HostBuffer dw = random_f32({c_.head_dim}, 4);
    const Tensor dy_in = in_out(dy), dw_out = in_out(dw, testing::kAsIs);
    std::vector<double> dx_ref(x.size()), dw_ref = to_double(dw);
    ref::head_norm_rope_backward<double>(shape(), to_double(dy).data(), x.data(), w.data(), eps_, c_.offset, positions, cos64_.data(),
                                         sin64_.data(), dx_ref.data(), dw_ref.data());
    // In place: d_x is d_y.
    head_norm_rope_backward(context(), {.d_y = dy_in,
                                        .x = x_in_,
                                        .weight = w_in_,
                                        .rstd = rstd_out,
                                        .weight_offset = c_.offset,
                                        .positions = positions_in_,
                                        .cos = cos_in_,
                                        .sin = sin_in_,
                                        .d_x = dy_in,
                                        .d_weight = dw_out});
    finish();
    EXPECT_TRUE(close(dy, dx_ref, tolerance(testing::kGradientF32)));
    EXPECT_TRUE(close(dw, dw_ref, tolerance(testing::kGradientF32, testing::kAsIs)));
}

TEST_P(HeadNormRope, WithoutWeightOnlyTheRotationIsApplied) {
    const std::vector<double> x = to_double(x_);
    std::vector<double> ref(x.size());
    ref::head_norm_rope_forward<double>(shape(), x.data(), nullptr, eps_, 0, angles_.positions.tensor().i32(), cos64_.data(), sin64_.data(),
                                        ref.data());
    // In place: y is x.
    head_norm_rope_forward(context(),
                           {.x = x_in_, .weight = {}, .positions = positions_in_, .cos = cos_in_, .sin = sin_in_, .y = x_in_, .rstd = {}});
    finish();
    EXPECT_TRUE(close(x_, ref, tolerance(testing::kOpF32)));
}

TEST_P(HeadNormRope, StridedInputGivesTheSameBitsAsContiguous) {
    const HostBuffer wide = random_f32({c_.rows, c_.heads, 2 * c_.head_dim}, 9);
    for (std::int64_t i = 0; i < c_.rows * c_.heads; ++i) {
        std::memcpy(wide.tensor().f32() + i * 2 * c_.head_dim, x_.tensor().f32() + i * c_.head_dim,
                    static_cast<std::size_t>(c_.head_dim) * sizeof(float));
    }
    const HostBuffer a = poisoned_f32(x_.tensor().shape), b = poisoned_f32(x_.tensor().shape);
    HeadNormRopeForwardParams p{
        .x = x_in_, .weight = w_in_, .positions = positions_in_, .cos = cos_in_, .sin = sin_in_, .y = out(a), .rstd = {}};
    head_norm_rope_forward(context(), p);
    p.x = in(wide);
    p.x_head_stride = 2 * c_.head_dim;
    p.x_row_stride = 2 * c_.head_dim * c_.heads;
    p.y = out(b);
    head_norm_rope_forward(context(), p);
    finish();
    EXPECT_EQ(0, std::memcmp(a.tensor().data, b.tensor().data, a.tensor().bytes()));
}

DFLASH_CASES_ON_EACH_DEVICE(Shapes, HeadNormRope,
                            ::testing::Values(RopeCase{1, 1, 16, 16, 0}, RopeCase{3, 2, 64, 64, 0}, RopeCase{5, 3, 64, 16, 1},
                                              RopeCase{50, 4, 48, 20, 0}, RopeCase{33, 2, 256, 64, 1}));

TEST(HeadNormRopeRef, GradientIsTheDerivative) {
    const RopeCase c{2, 2, 6, 4, 1};
    const Angles angles(c);
    const std::vector<double> cos = to_double(angles.cos), sin = to_double(angles.sin);
    const std::int32_t* positions = angles.positions.tensor().i32();
    const ref::HeadNormRopeShape shape{c.rows, c.heads, c.head_dim, c.rotary / 2};
    std::vector<double> x = to_double(random_f32({2, 2, 6}, 1)), w = to_double(random_f32({6}, 2));
    const std::vector<double> dy = to_double(random_f32({2, 2, 6}, 3));
    const double eps = 1e-3;
    const auto loss = [&] {
        std::vector<double> y(x.size());
        ref::head_norm_rope_forward<double>(shape, x.data(), w.data(), eps, 1, positions, cos.data(), sin.data(), y.data());
        return testing::dot(y, dy);
    };
    std::vector<double> dx(x.size()), dw(w.size(), 0.0);
    ref::head_norm_rope_backward<double>(shape, dy.data(), x.data(), w.data(), eps, 1, positions, cos.data(), sin.data(), dx.data(),
                                         dw.data());
    EXPECT_TRUE(testing::gradient_matches(dx, x, loss));
    EXPECT_TRUE(testing::gradient_matches(dw, w, loss));
}

TEST(HeadNormRopeChecks, APositionBeyondTheTableIsRefused) {
    const Context context;
    const HostBuffer x = random_f32({1, 1, 16}, 1);
    const HostBuffer table = random_f32({4, 8}, 1);
    const HostBuffer w = random_f32({16}, 1);
    for (const std::int32_t position : {-1, 4}) {
        const HostBuffer positions = testing::i32_tensor({position});
        EXPECT_THROW(
            head_norm_rope_forward(context, {.x = x, .weight = w, .positions = positions, .cos = table, .sin = table, .y = x, .rstd = {}}),
            Error);
    }
}

}  // namespace
}  // namespace dflash
