// SPDX-License-Identifier: MIT
// Matrix products on every device (support/device_case.h); also the pattern for other ops' tests: fixtures derive from DeviceCases<Case> or
// DeviceTest, inputs pass through in() before the reference reads them, results through out() and finish(), bounds through tolerance().
#include "kernels/linear.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/ref/linear.h"
#include "support/close.h"
#include "support/data.h"
#include "support/device_case.h"

namespace dflash {
namespace {

using testing::close;
using testing::poisoned_f32;
using testing::random_f32;
using testing::to_double;

struct LinearCase {
    std::int64_t rows, in, out;
};
class Linear : public testing::DeviceCases<LinearCase> {
protected:
    HostBuffer x_ = random_f32({c_.rows, c_.in}, 1);
    HostBuffer w_ = random_f32({c_.out, c_.in}, 2);
    HostBuffer dy_ = random_f32({c_.rows, c_.out}, 3);
    void SetUp() override {
        DeviceCases::SetUp();
        if (IsSkipped()) return;
        x_in_ = in(x_), w_in_ = in(w_), dy_in_ = in(dy_);
        x64_ = to_double(x_), w64_ = to_double(w_), dy64_ = to_double(dy_);
    }
    Tensor x_in_, w_in_, dy_in_;
    std::vector<double> x64_, w64_, dy64_;
};

TEST_P(Linear, ForwardOverwritesThenAccumulates) {
    const HostBuffer y = poisoned_f32({c_.rows, c_.out});
    const Tensor y_out = out(y);
    std::vector<double> ref(static_cast<std::size_t>(c_.rows * c_.out));
    for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
        linear_forward(context(), {x_in_, w_in_, y_out, write});
        finish();
        ref::linear_forward(x64_.data(), w64_.data(), ref.data(), c_.rows, c_.in, c_.out, write == Write::kAccumulate);
        EXPECT_TRUE(close(y, ref, tolerance(testing::kOpF32)));
    }
}

TEST_P(Linear, BackwardInputOverwritesThenAccumulates) {
    const HostBuffer dx = poisoned_f32({c_.rows, c_.in});
    const Tensor dx_out = out(dx);
    std::vector<double> ref(static_cast<std::size_t>(c_.rows * c_.in));
    for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
        linear_backward_input(context(), {dy_in_, w_in_, dx_out, write});
        finish();
        ref::linear_backward_input(dy64_.data(), w64_.data(), ref.data(), c_.rows, c_.in, c_.out, write == Write::kAccumulate);
        EXPECT_TRUE(close(dx, ref, tolerance(testing::kOpF32)));
    }
}

TEST_P(Linear, BackwardWeightOverwritesThenAccumulates) {
    const HostBuffer dw = poisoned_f32({c_.out, c_.in});
    const Tensor dw_out = out(dw);
    std::vector<double> ref(static_cast<std::size_t>(c_.out * c_.in));
    for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
        linear_backward_weight(context(), {dy_in_, x_in_, dw_out, write});
        finish();
        ref::linear_backward_weight(dy64_.data(), x64_.data(), ref.data(), c_.rows, c_.in, c_.out, write == Write::kAccumulate);
        EXPECT_TRUE(close(dw, ref, tolerance(testing::kGradientF32)));
    }
}

// Results wider than the working dtype: decoding's logits, and gradients that several micro-batches add to.
TEST_P(Linear, ResultsMayBeF32) {
    const HostBuffer y = poisoned_f32({c_.rows, c_.out});
    const HostBuffer dw = poisoned_f32({c_.out, c_.in});
    const Tensor y_out = out(y, testing::kAsIs);
    const Tensor dw_out = out(dw, testing::kAsIs);
    std::vector<double> y_ref(static_cast<std::size_t>(c_.rows * c_.out)), dw_ref(static_cast<std::size_t>(c_.out * c_.in));
    for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
        linear_forward(context(), {x_in_, w_in_, y_out, write});
        linear_backward_weight(context(), {dy_in_, x_in_, dw_out, write});
        const bool add = write == Write::kAccumulate;
        ref::linear_forward(x64_.data(), w64_.data(), y_ref.data(), c_.rows, c_.in, c_.out, add);
        ref::linear_backward_weight(dy64_.data(), x64_.data(), dw_ref.data(), c_.rows, c_.in, c_.out, add);
    }
    finish();
    EXPECT_TRUE(close(y, y_ref, tolerance(testing::kOpF32, testing::kAsIs)));
    EXPECT_TRUE(close(dw, dw_ref, tolerance(testing::kGradientF32, testing::kAsIs)));
}

void expect_same_bits(const Tensor& a, const Tensor& b) { EXPECT_EQ(0, std::memcmp(a.data, b.data, a.bytes())); }

TEST_P(Linear, SameRowsGiveTheSameBits) {
    const HostBuffer y = poisoned_f32({c_.rows, c_.out}), y_again = poisoned_f32({c_.rows, c_.out});
    const HostBuffer dx = poisoned_f32({c_.rows, c_.in}), dx_again = poisoned_f32({c_.rows, c_.in});
    const HostBuffer dw = poisoned_f32({c_.out, c_.in}), dw_again = poisoned_f32({c_.out, c_.in});
    const Context other(device());
    linear_forward(context(), {x_in_, w_in_, out(y)});
    linear_backward_input(context(), {dy_in_, w_in_, out(dx)});
    linear_backward_weight(context(), {dy_in_, x_in_, out(dw), Write::kOverwrite});
    const Tensor y_out = out(y_again), dx_out = out(dx_again), dw_out = out(dw_again);
    context().synchronize();
    linear_forward(other, {x_in_, w_in_, y_out});
    linear_backward_input(other, {dy_in_, w_in_, dx_out});
    linear_backward_weight(other, {dy_in_, x_in_, dw_out, Write::kOverwrite});
    other.synchronize();
    finish();
    expect_same_bits(y, y_again);
    expect_same_bits(dx, dx_again);
    expect_same_bits(dw, dw_again);
}

DFLASH_CASES_ON_EACH_DEVICE(small, Linear,
                            ::testing::Values(LinearCase{1, 1, 1}, LinearCase{1, 64, 33}, LinearCase{3, 5, 7}, LinearCase{15, 64, 96},
                                              LinearCase{16, 40, 24}, LinearCase{31, 129, 65}, LinearCase{100, 96, 64},
                                              LinearCase{2065, 17, 19}, LinearCase{9, 320, 4100}));
// On the CPU, wide row-major right-hand sides are packed first.
DFLASH_CASES_ON_EACH_DEVICE(wide, Linear, ::testing::Values(LinearCase{5, 4200, 6}, LinearCase{300, 520, 264}));

class LinearRows : public testing::DeviceTest {};

TEST_P(LinearRows, NoRowsWriteNothingButAZeroWeightGradient) {
    const HostBuffer none = random_f32({0, 4}, 1);
    const HostBuffer none_out = random_f32({0, 6}, 1);
    const HostBuffer w = random_f32({6, 4}, 2);
    const Tensor x = in(none), y = in(none_out), weight = in(w);
    linear_forward(context(), {x, weight, y});
    linear_backward_input(context(), {y, weight, x});
    const HostBuffer dw = poisoned_f32({6, 4});
    linear_backward_weight(context(), {y, x, out(dw), Write::kOverwrite});
    finish();
    for (const float value : testing::f32_span(dw)) EXPECT_EQ(value, 0.0F);
}

// What decoding rests on: a row's result is its own.
TEST_P(LinearRows, ARowsBitsDoNotDependOnOtherRows) {
    const std::int64_t rows = 16, in_columns = 200, out_columns = 72;
    const HostBuffer x = random_f32({rows, in_columns}, 1), others = random_f32({rows, in_columns}, 9),
                     w = random_f32({out_columns, in_columns}, 2);
    const std::size_t row = 5;
    std::memcpy(others.tensor().f32() + row * in_columns, x.tensor().f32() + row * in_columns, in_columns * sizeof(float));
    const HostBuffer y = poisoned_f32({rows, out_columns}), y_others = poisoned_f32({rows, out_columns});
    const Tensor weight = in(w);
    linear_forward(context(), {in(x), weight, out(y)});
    linear_forward(context(), {in(others), weight, out(y_others)});
    finish();
    expect_same_bits(y.tensor().slice_rows(row, 1), y_others.tensor().slice_rows(row, 1));
}

// Every row count of a step, whichever is prepared; and a chunk of a larger matrix, which starts at any row.
TEST_P(LinearRows, EveryRowCountUpToTheLargestWorks) {
    const std::int64_t rows = 70, in_columns = 48, out_columns = 40;
    const HostBuffer x = random_f32({rows, in_columns}, 1), w = random_f32({out_columns, in_columns}, 2),
                     dy = random_f32({rows, out_columns}, 3);
    linear_prepare(context(), {{rows, in_columns, out_columns, true, true, true}});
    const Tensor x_all = in(x), weight = in(w), dy_all = in(dy);
    for (std::int64_t count = 1; count <= rows; ++count) {
        const std::int64_t first = rows - count;
        const HostBuffer y = poisoned_f32({count, out_columns}), dw = poisoned_f32({out_columns, in_columns});
        linear_forward(context(), {x_all.slice_rows(first, count), weight, out(y)});
        linear_backward_weight(context(), {dy_all.slice_rows(first, count), x_all.slice_rows(first, count), out(dw), Write::kOverwrite});
        finish();
        std::vector<double> y_ref(static_cast<std::size_t>(count * out_columns)),
            dw_ref(static_cast<std::size_t>(out_columns * in_columns));
        const std::vector<double> x64 = to_double(x.tensor().slice_rows(first, count)),
                                  dy64 = to_double(dy.tensor().slice_rows(first, count));
        ref::linear_forward(x64.data(), to_double(w).data(), y_ref.data(), count, in_columns, out_columns, false);
        ref::linear_backward_weight(dy64.data(), x64.data(), dw_ref.data(), count, in_columns, out_columns, false);
        ASSERT_TRUE(close(y, y_ref, tolerance(testing::kOpF32))) << count << " rows";
        ASSERT_TRUE(close(dw, dw_ref, tolerance(testing::kGradientF32))) << count << " rows";
        forget();
    }
}

TEST_P(LinearRows, TheComputedWorkspaceIsEnoughForEveryRowCount) {
    const std::vector<LinearShape> shapes = {{200, 256, 96, true, true, true}};
    const auto bytes = static_cast<std::int64_t>(linear_workspace_bytes(device(), shapes));
    const DeviceBuffer workspace(device(), DType::kU8, {bytes});
    Context bound(device());
    bound.bind_workspace(workspace);
    linear_prepare(bound, shapes);
    const HostBuffer w = random_f32({96, 256}, 2), x = random_f32({200, 256}, 1), y = poisoned_f32({200, 96}),
                     dx = poisoned_f32({200, 256}), dw = random_f32({96, 256}, 2);
    const Tensor weight = in(w), x_all = in(x), y_all = out(y), dx_all = out(dx), dw_out = in_out(dw);
    context().synchronize();
    for (const std::int64_t rows : {1, 15, 16, 100, 199, 200}) {
        const Tensor x_rows = x_all.slice_rows(0, rows), y_rows = y_all.slice_rows(0, rows), dx_rows = dx_all.slice_rows(0, rows);
        for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
            EXPECT_NO_THROW(linear_forward(bound, {x_rows, weight, y_rows, write}));
            EXPECT_NO_THROW(linear_backward_input(bound, {y_rows, weight, dx_rows, write}));
            EXPECT_NO_THROW(linear_backward_weight(bound, {y_rows, x_rows, dw_out, write}));
        }
    }
    bound.synchronize();
    finish();
    for (const float value : testing::f32_span(dx)) ASSERT_FALSE(std::isnan(value));
}

DFLASH_ON_EACH_DEVICE(LinearRows);

TEST(LinearChecks, WrongShapesAndDtypesAreRefused) {
    const Context context;
    const HostBuffer x = random_f32({4, 8}, 1);
    const HostBuffer w = random_f32({6, 8}, 2);
    const HostBuffer wrong_in = random_f32({6, 7}, 2);
    const HostBuffer y = random_f32({4, 6}, 3);
    const HostBuffer short_y = random_f32({3, 6}, 3);
    const HostBuffer half(DType::kBF16, {4, 8});
    EXPECT_THROW(linear_forward(context, {x, wrong_in, y}), Error);
    EXPECT_THROW(linear_forward(context, {x, w, short_y}), Error);
    EXPECT_THROW(linear_forward(context, {half, w, y}), Error);
    EXPECT_THROW(linear_forward(context, {x, w, Tensor{}}), Error);
}

TEST(ContextWorkspace, ABoundWorkspaceThatIsTooSmallIsRefused) {
    Context context;
    const HostBuffer workspace(DType::kU8, {64});
    context.bind_workspace(workspace);
    EXPECT_NE(context.workspace(64), nullptr);
    EXPECT_THROW(context.workspace(65), Error);
}

}  // namespace
}  // namespace dflash
