// SPDX-License-Identifier: MIT
#include "kernels/cross_entropy.h"

#include <gtest/gtest.h>

#include "kernels/ref/cross_entropy.h"
#include "support/close.h"
#include "support/data.h"
#include "support/device_case.h"
#include "support/gradcheck.h"

namespace dflash {
namespace {

using testing::close;
using testing::i32_tensor;
using testing::poisoned_f32;
using testing::random_f32;
using testing::to_double;

HostBuffer labels_for(std::int64_t rows, std::int64_t vocabulary) {
    std::vector<std::int32_t> labels;
    for (std::int64_t r = 0; r < rows; ++r) labels.push_back(static_cast<std::int32_t>((r * 31 + vocabulary - 1) % vocabulary));
    return i32_tensor(labels);
}

struct Outputs {
    explicit Outputs(std::int64_t rows)
        : loss(poisoned_f32({rows})),
          label_prob(poisoned_f32({rows})),
          correct(i32_tensor(std::vector<std::int32_t>(static_cast<std::size_t>(rows), -7))) {}
    HostBuffer loss, label_prob, correct;
};

struct Reference {
    Reference(const Tensor& logits, const Tensor* teacher, const Tensor& labels)
        : loss(static_cast<std::size_t>(logits.rows())), label_prob(loss), gradient(static_cast<std::size_t>(logits.elements())) {
        const std::int64_t n = logits.row_elements();
        const std::vector<double> z = to_double(logits);
        const std::vector<double> t = teacher == nullptr ? std::vector<double>() : to_double(*teacher);
        for (std::int64_t r = 0; r < logits.rows(); ++r) {
            loss[static_cast<std::size_t>(r)] = ref::cross_entropy_row(z.data() + r * n, teacher == nullptr ? nullptr : t.data() + r * n,
                                                                       labels.i32()[r], n, gradient.data() + r * n, label_prob.data() + r);
        }
    }
    std::vector<double> loss, label_prob, gradient;
};

struct LossCase {
    std::int64_t rows, vocabulary;
    double scale;
};
class CrossEntropy : public testing::DeviceCases<LossCase> {
protected:
    void check(const Tensor* teacher) {
        const HostBuffer labels = labels_for(c_.rows, c_.vocabulary);
        const Tensor labels_in = in(labels), logits_in = in_out(logits_);
        Tensor teacher_in = teacher == nullptr ? Tensor{} : in(*teacher);  // rounds what the reference reads
        const Reference ref(logits_, teacher, labels);
        const std::vector<double> before = to_double(logits_);
        const HostBuffer unused = teacher == nullptr ? HostBuffer() : random_f32({c_.rows, c_.vocabulary}, 2, c_.scale);
        if (teacher != nullptr) teacher_in = in(unused);  // each call may leave it as scratch
        const Outputs first(c_.rows), again(c_.rows);
        run(logits_in, teacher_in, labels_in, first, false);
        EXPECT_EQ(before, to_double(logits_)) << "without a gradient the logits stay";
        EXPECT_TRUE(close(first.loss, ref.loss, tolerance(testing::kOpF32, testing::kAsIs)));

        const HostBuffer unused_again = teacher == nullptr ? HostBuffer() : random_f32({c_.rows, c_.vocabulary}, 2, c_.scale);
        if (teacher != nullptr) teacher_in = in(unused_again);
        run(logits_in, teacher_in, labels_in, again, true);
        EXPECT_TRUE(close(again.loss, ref.loss, tolerance(testing::kOpF32, testing::kAsIs)));
        EXPECT_TRUE(close(again.label_prob, ref.label_prob, tolerance(testing::kGradientF32, testing::kAsIs)));
        EXPECT_TRUE(close(logits_, ref.gradient, tolerance(testing::kGradientF32)));
        for (std::int64_t r = 0; r < c_.rows; ++r) {
            const auto row = before.begin() + r * c_.vocabulary;
            const auto best = std::max_element(row, row + c_.vocabulary) - row;
            EXPECT_EQ(again.correct.tensor().i32()[r], best == labels.tensor().i32()[r] ? 1 : 0) << "row " << r;
        }
    }
    void run(const Tensor& logits, const Tensor& teacher, const Tensor& labels, const Outputs& to, bool want_gradient) {
        cross_entropy_forward_backward(context(), {logits, teacher, labels, out(to.loss, testing::kAsIs),
                                                   out(to.label_prob, testing::kAsIs), out(to.correct), want_gradient});
        finish();
    }
    HostBuffer logits_ = random_f32({c_.rows, c_.vocabulary}, 1, c_.scale);
};

TEST_P(CrossEntropy, LabelLossMatchesTheReference) { check(nullptr); }

TEST_P(CrossEntropy, TeacherLossMatchesTheReference) {
    const HostBuffer teacher = random_f32({c_.rows, c_.vocabulary}, 2, c_.scale);
    check(&teacher.tensor());
}

TEST_P(CrossEntropy, ATeacherEqualToTheStudentGivesZeroLossAndGradient) {
    const HostBuffer teacher = random_f32({c_.rows, c_.vocabulary}, 1, c_.scale);
    const HostBuffer labels = labels_for(c_.rows, c_.vocabulary);
    const Outputs got(c_.rows);
    run(in_out(logits_), in(teacher), in(labels), got, true);
    if (device().type == DeviceType::kCpu) {
        for (const float value : testing::f32_span(got.loss)) EXPECT_EQ(value, 0.0F);
        for (const float value : testing::f32_span(logits_)) ASSERT_EQ(value, 0.0F);
        return;
    }
    const std::vector<double> no_loss(static_cast<std::size_t>(c_.rows)),
        no_gradient(static_cast<std::size_t>(logits_.tensor().elements()));
    EXPECT_TRUE(close(got.loss, no_loss, testing::kOpF32));
    EXPECT_TRUE(close(logits_, no_gradient, testing::kOpF32));
}

// Rows in any split give the same bits: the chunk size cannot change a result.
TEST_P(CrossEntropy, ChunksOfRowsGiveTheSameBits) {
    const HostBuffer labels = labels_for(c_.rows, c_.vocabulary);
    const HostBuffer other = random_f32({c_.rows, c_.vocabulary}, 1, c_.scale);
    const Outputs whole(c_.rows), parts(c_.rows);
    const Tensor labels_in = in(labels), other_in = in_out(other);
    run(in_out(logits_), {}, labels_in, whole, true);
    const Tensor loss = out(parts.loss, testing::kAsIs), prob = out(parts.label_prob, testing::kAsIs), correct = out(parts.correct);
    for (std::int64_t r = 0; r < c_.rows; ++r) {
        cross_entropy_forward_backward(context(), {other_in.slice_rows(r, 1),
                                                   {},
                                                   labels_in.slice_rows(r, 1),
                                                   loss.slice_rows(r, 1),
                                                   prob.slice_rows(r, 1),
                                                   correct.slice_rows(r, 1)});
    }
    finish();
    EXPECT_EQ(to_double(whole.loss), to_double(parts.loss));
    EXPECT_EQ(to_double(logits_), to_double(other));
}

DFLASH_CASES_ON_EACH_DEVICE(Shapes, CrossEntropy,
                            ::testing::Values(LossCase{9, 2, 1.0}, LossCase{1, 1000, 3.0}, LossCase{7, 33, 1.0}, LossCase{100, 320, 2.0},
                                              LossCase{3, 4099, 10.0}));

TEST(CrossEntropyRef, GradientIsTheDerivative) {
    std::vector<double> z = to_double(random_f32({11}, 1));
    const std::vector<double> t = to_double(random_f32({11}, 2));
    for (const double* teacher : {static_cast<const double*>(nullptr), t.data()}) {
        std::vector<double> gradient(11), scratch(11);
        double label_prob = 0;
        ref::cross_entropy_row(z.data(), teacher, 4, 11, gradient.data(), &label_prob);
        EXPECT_TRUE(testing::gradient_matches(
            gradient, z, [&] { return ref::cross_entropy_row(z.data(), teacher, 4, 11, scratch.data(), &label_prob); }));
    }
}

TEST(CrossEntropyRange, LogitsOfTenThousandDoNotOverflow) {
    const Context context;
    for (const float size : {1e4F, -1e4F}) {
        const HostBuffer logits(DType::kF32, {2, 37});
        logits.tensor().f32()[5] = size;
        logits.tensor().f32()[37 + 6] = size;
        const HostBuffer labels = i32_tensor({5, 5});
        const Reference ref(logits, nullptr, labels);
        Outputs out(2);
        cross_entropy_forward_backward(context, {logits, {}, labels, out.loss, out.label_prob, out.correct});
        EXPECT_TRUE(close(out.loss, ref.loss, testing::kOpF32));
        EXPECT_TRUE(close(logits, ref.gradient, testing::kGradientF32));
    }
}

TEST(CrossEntropyRange, EqualLogitsCountTheFirstAsTheLargest) {
    const Context context;
    const HostBuffer logits(DType::kF32, {3, 20});
    Outputs out(3);
    cross_entropy_forward_backward(context, {logits, {}, i32_tensor({0, 1, 19}), out.loss, out.label_prob, out.correct, false});
    EXPECT_EQ(out.correct.tensor().i32()[0], 1);
    EXPECT_EQ(out.correct.tensor().i32()[1], 0);
    EXPECT_EQ(out.correct.tensor().i32()[2], 0);
}

TEST(CrossEntropyRange, ANanLogitGivesANanLossInItsRowAlone) {
    const Context context;
    for (const std::int64_t at : {0, 7, 16, 36}) {
        for (const bool with_teacher : {false, true}) {
            const HostBuffer logits = random_f32({2, 37}, 1);
            const HostBuffer teacher = random_f32({2, 37}, 2);
            logits.tensor().f32()[at] = std::numeric_limits<float>::quiet_NaN();
            Outputs out(2);
            cross_entropy_forward_backward(
                context, {logits, with_teacher ? teacher.tensor() : Tensor{}, i32_tensor({3, 3}), out.loss, out.label_prob, out.correct});
            EXPECT_TRUE(std::isnan(out.loss.tensor().f32()[0])) << "NaN at " << at;
            EXPECT_EQ(out.correct.tensor().i32()[0], 0);
            EXPECT_FALSE(std::isnan(out.loss.tensor().f32()[1]));
        }
    }
}

TEST(CrossEntropyRange, NoRowsAreFineAndALabelOutsideIsRefused) {
    const Context context;
    const HostBuffer none = random_f32({0, 5}, 1);
    Outputs no_rows(0);
    EXPECT_NO_THROW(cross_entropy_forward_backward(context, {none, {}, i32_tensor({}), no_rows.loss, no_rows.label_prob, no_rows.correct}));
    const HostBuffer logits = random_f32({1, 5}, 1);
    Outputs out(1);
    for (const std::int32_t label : {-1, 5}) {
        EXPECT_THROW(cross_entropy_forward_backward(context, {logits, {}, i32_tensor({label}), out.loss, out.label_prob, out.correct}),
                     Error);
    }
}

}  // namespace
}  // namespace dflash
