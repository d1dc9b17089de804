// SPDX-License-Identifier: MIT
#include "train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/close.h"
#include "support/data.h"
#include "train/toy_run.h"

namespace dflash {
namespace {

struct Toy {
    explicit Toy(OptimizerKind kind = OptimizerKind::kAdamW)
        : target(testing::toy_target_config()), spec(testing::toy_draft_spec(target, 1)), plan(make(kind)), arena(Device{}, plan) {
        const DraftMasters masters = bind_draft_masters(spec, arena);
        weights = masters.weights;
        optimizer = std::make_unique<Optimizer>(spec, masters, arena);
        optimizer->zero_moments(context);
        initialise_draft(masters, 1);
    }
    Plan make(OptimizerKind kind) const {
        std::vector<BufferSpec> buffers = optimizer_buffers(spec, {.kind = kind}, {[](const std::string&) { return Lifetime{}; }, {}, {}});
        const std::vector<BufferSpec> own = draft_master_buffers(spec, Device{}, {0, 0});
        buffers.insert(buffers.end(), own.begin(), own.end());
        return make_plan({"all"}, buffers);
    }
    void set_gradients(float value) {
        for (const NamedTensor& gradient : optimizer->named_gradients()) {
            for (std::int64_t i = 0; i < gradient.tensor.elements(); ++i) gradient.tensor.f32()[i] = value;
        }
    }
    // One update with the given weight sum; the gradient's norm before clipping.
    double update(double lr, double weight_sum, double max_grad_norm, std::int64_t step = 1) {
        optimizer->update(context, {.lr = lr, .max_grad_norm = max_grad_norm, .step = step}, testing::f64_tensor({1.0, weight_sum}));
        return optimizer->gradient_norm(context);
    }
    std::int64_t parameters() const {
        std::int64_t count = 0;
        for (const NamedTensor& weight : named_tensors(weights)) count += weight.tensor.elements();
        return count;
    }
    TargetConfig target;
    DraftSpec spec;
    Plan plan;
    Arena arena;
    Context context;
    DraftTensors weights;
    std::unique_ptr<Optimizer> optimizer;
};

// A gain of 1.0 under a constant gradient at a rate far below bf16's step at 1.0: only an f32 master moves.
TEST(Optimizer, SmallRatesMoveGainsOfOne) {
    Toy toy;
    toy.set_gradients(0.5F);
    for (std::int64_t step = 1; step <= 200; ++step) {
        toy.update(1e-4, 1.0, 0, step);
    }
    const std::vector<float> expected(static_cast<std::size_t>(toy.weights.norm.elements()), 0.98F);
    EXPECT_TRUE(testing::close(testing::f32_span(toy.weights.norm), std::span<const float>(expected), testing::kGradientF32));
}

TEST(Optimizer, GradientsAreScaledOnceByTheWeightSum) {
    Toy one;
    Toy other;
    one.set_gradients(3.0F);
    other.set_gradients(3.0F * 8);
    const double norm = one.update(1e-3, 2.0, 0);
    EXPECT_DOUBLE_EQ(norm, 1.5 * std::sqrt(static_cast<double>(one.parameters())));
    EXPECT_DOUBLE_EQ(other.update(1e-3, 16.0, 0), norm);
    EXPECT_TRUE(testing::close(one.weights.fc, testing::to_double(other.weights.fc), testing::kOpF32));
}

TEST(Optimizer, ClipsToTheNormAndLeavesSmallGradientsAlone) {
    for (const double limit : {0.25, 1e9}) {
        Toy toy;
        toy.set_gradients(1.0F);
        const double norm = toy.update(1e-3, 1.0, limit);
        // The first moment is 0.1 of the clipped gradient.
        const Tensor m = toy.optimizer->state().front().m;
        const double expected = 0.1 * std::min(1.0, limit / norm);
        const std::vector<double> all(static_cast<std::size_t>(m.elements()), expected);
        EXPECT_TRUE(testing::close(m, all, testing::kOpF32));
    }
}

TEST(Optimizer, NothingSupervisedIsAZeroGradient) {
    Toy toy;
    toy.set_gradients(0.0F);
    const std::vector<double> before = testing::to_double(toy.weights.fc);
    EXPECT_EQ(toy.update(1e-3, 0.0, 1), 0.0);
    EXPECT_EQ(testing::to_double(toy.weights.fc), before);
}

// Muon's matrices have no second moment; norms keep AdamW's rule. Both scale the gradient once.
TEST(Optimizer, MuonMovesMatricesAndLeavesNormsToAdamW) {
    Toy muon(OptimizerKind::kMuon);
    Toy adamw;
    for (Toy* toy : {&muon, &adamw}) {
        toy->set_gradients(2.0F);
        toy->update(1e-3, 4.0, 0);
    }
    for (std::size_t i = 0; i < muon.optimizer->state().size(); ++i) {
        const Optimizer::State& state = muon.optimizer->state()[i];
        const Optimizer::State& other = adamw.optimizer->state()[i];
        EXPECT_EQ(state.v.defined(), state.weight.shape.rank() == 1) << state.name;
        const bool same = std::equal(state.weight.f32(), state.weight.f32() + state.weight.elements(), other.weight.f32());
        EXPECT_EQ(same, state.weight.shape.rank() == 1) << state.name;
        const std::vector<double> momentum(static_cast<std::size_t>(state.m.elements()), state.weight.shape.rank() == 1 ? 0.05 : 0.5);
        EXPECT_TRUE(testing::close(state.m, momentum, testing::kOpF32)) << state.name;
    }
}

}  // namespace
}  // namespace dflash
