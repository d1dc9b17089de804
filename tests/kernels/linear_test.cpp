// SPDX-License-Identifier: MIT
#include "kernels/linear.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/ref/linear.h"
#include "support/close.h"
#include "support/data.h"

namespace dflash {
namespace {

using testing::close;
using testing::poisoned_f32;
using testing::random_f32;
using testing::to_double;

struct LinearCase {
    std::int64_t rows, in, out;
};
class Linear : public ::testing::TestWithParam<LinearCase> {
protected:
    Context context_;
    LinearCase c_ = GetParam();
    HostBuffer x_ = random_f32({c_.rows, c_.in}, 1);
    HostBuffer w_ = random_f32({c_.out, c_.in}, 2);
    HostBuffer dy_ = random_f32({c_.rows, c_.out}, 3);
    std::vector<double> x64_ = to_double(x_), w64_ = to_double(w_), dy64_ = to_double(dy_);
};

TEST_P(Linear, ForwardOverwritesThenAccumulates) {
    HostBuffer y = poisoned_f32({c_.rows, c_.out});
    std::vector<double> ref(static_cast<std::size_t>(c_.rows * c_.out));
    for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
        linear_forward(context_, {x_, w_, y, write});
        ref::linear_forward(x64_.data(), w64_.data(), ref.data(), c_.rows, c_.in, c_.out, write == Write::kAccumulate);
        EXPECT_TRUE(close(y, ref, testing::kOpF32));
    }
}

TEST_P(Linear, BackwardInputOverwritesThenAccumulates) {
    HostBuffer dx = poisoned_f32({c_.rows, c_.in});
    std::vector<double> ref(static_cast<std::size_t>(c_.rows * c_.in));
    for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
        linear_backward_input(context_, {dy_, w_, dx, write});
        ref::linear_backward_input(dy64_.data(), w64_.data(), ref.data(), c_.rows, c_.in, c_.out, write == Write::kAccumulate);
        EXPECT_TRUE(close(dx, ref, testing::kOpF32));
    }
}

TEST_P(Linear, BackwardWeightOverwritesThenAccumulates) {
    HostBuffer dw = poisoned_f32({c_.out, c_.in});
    std::vector<double> ref(static_cast<std::size_t>(c_.out * c_.in));
    for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
        linear_backward_weight(context_, {dy_, x_, dw, write});
        ref::linear_backward_weight(dy64_.data(), x64_.data(), ref.data(), c_.rows, c_.in, c_.out, write == Write::kAccumulate);
        EXPECT_TRUE(close(dw, ref, testing::kGradientF32));
    }
}

TEST_P(Linear, SameRowsGiveTheSameBits) {
    HostBuffer first = poisoned_f32({c_.rows, c_.out});
    HostBuffer second = poisoned_f32({c_.rows, c_.out});
    linear_forward(context_, {x_, w_, first});
    const Context other;
    linear_forward(other, {x_, w_, second});
    EXPECT_EQ(0, std::memcmp(first.tensor().data, second.tensor().data, first.tensor().bytes()));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Linear,
                         ::testing::Values(LinearCase{1, 1, 1}, LinearCase{1, 64, 33}, LinearCase{3, 5, 7}, LinearCase{15, 64, 96},
                                           LinearCase{16, 40, 24}, LinearCase{31, 129, 65}, LinearCase{100, 96, 64},
                                           LinearCase{2065, 17, 19}, LinearCase{9, 320, 4100}));

// Wide row-major right-hand sides are packed first.
TEST(LinearWide, BackwardThroughManyInputColumns) {
    const Context context;
    const std::int64_t rows = 5, in = 4200, out = 6;
    const HostBuffer x = random_f32({rows, in}, 1);
    const HostBuffer w = random_f32({out, in}, 2);
    const HostBuffer dy = random_f32({rows, out}, 3);
    const HostBuffer dx = poisoned_f32({rows, in});
    const HostBuffer dw = poisoned_f32({out, in});
    std::vector<double> dx_ref(static_cast<std::size_t>(rows * in)), dw_ref(static_cast<std::size_t>(out * in));
    linear_backward_input(context, {dy, w, dx});
    linear_backward_weight(context, {dy, x, dw, Write::kOverwrite});
    ref::linear_backward_input(to_double(dy).data(), to_double(w).data(), dx_ref.data(), rows, in, out, false);
    ref::linear_backward_weight(to_double(dy).data(), to_double(x).data(), dw_ref.data(), rows, in, out, false);
    EXPECT_TRUE(close(dx, dx_ref, testing::kOpF32));
    EXPECT_TRUE(close(dw, dw_ref, testing::kGradientF32));
}

TEST(LinearRows, NoRowsWriteNothingButAZeroWeightGradient) {
    const Context context;
    const HostBuffer none = random_f32({0, 4}, 1);
    const HostBuffer none_out = random_f32({0, 6}, 1);
    const HostBuffer w = random_f32({6, 4}, 2);
    linear_forward(context, {none, w, none_out});
    linear_backward_input(context, {none_out, w, none});
    const HostBuffer dw = poisoned_f32({6, 4});
    linear_backward_weight(context, {none_out, none, dw, Write::kOverwrite});
    for (const float value : testing::f32_span(dw)) EXPECT_EQ(value, 0.0F);
}

TEST(LinearPlan, TheComputedWorkspaceIsEnoughForEveryRowCount) {
    const std::vector<LinearShape> shapes = {{200, 256, 96, true, true, true}};
    const HostBuffer workspace(DType::kU8, {static_cast<std::int64_t>(linear_workspace_bytes(Device{}, shapes))});
    Context context;
    context.bind_workspace(workspace);
    linear_prepare(context, shapes);
    const HostBuffer w = random_f32({96, 256}, 2);
    const HostBuffer dw = random_f32({96, 256}, 2);
    for (const std::int64_t rows : {1, 15, 16, 100, 199, 200}) {
        const HostBuffer x = random_f32({rows, 256}, 1);
        const HostBuffer y = poisoned_f32({rows, 96});
        const HostBuffer dx = poisoned_f32({rows, 256});
        for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
            EXPECT_NO_THROW(linear_forward(context, {x, w, y, write}));
            EXPECT_NO_THROW(linear_backward_input(context, {y, w, dx, write}));
            EXPECT_NO_THROW(linear_backward_weight(context, {y, x, dw, write}));
        }
        EXPECT_FALSE(std::isnan(testing::f32_span(dx)[0]));
    }
}

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
