// SPDX-License-Identifier: MIT
#include "train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/close.h"
#include "support/data.h"
#include "support/device_case.h"
#include "support/device_values.h"
#include "tensor/host_reader.h"
#include "train/toy_run.h"

namespace dflash {
namespace {

// A drafter's masters, moments and gradients on a device.
struct Toy {
    explicit Toy(Device device, OptimizerKind kind = OptimizerKind::kAdamW)
        : spec(testing::toy_draft_spec(testing::toy_target_config(), 1)),
          context(device),
          arena(device, make(device, kind)),
          masters(bind_draft_masters(spec, arena)),
          optimizer(spec, masters, arena) {
        optimizer.zero_moments(context);
        initialise_draft(masters, 1);
    }
    Plan make(Device device, OptimizerKind kind) const {
        std::vector<BufferSpec> buffers =
            optimizer_buffers(spec, {.kind = kind, .device = device}, {[](const std::string&) { return Lifetime{}; }, {}, {}});
        const std::vector<BufferSpec> own = draft_master_buffers(spec, device, {0, 0});
        buffers.insert(buffers.end(), own.begin(), own.end());
        return make_plan({"all"}, buffers);
    }
    void set_gradients(float value) {
        for (const NamedTensor& gradient : optimizer.named_gradients()) {
            testing::set_values(context, std::vector<float>(static_cast<std::size_t>(gradient.tensor.elements()), value), gradient.tensor);
        }
    }
    // The f32 values of a master.
    std::vector<double> master(const Tensor& weight, const Tensor& remainder) const {
        std::vector<double> values;
        HostReader reader(context.stream());
        reader.read_master(weight, remainder, [&](const Tensor& part) {
            const std::vector<double> more = testing::to_double(part);
            values.insert(values.end(), more.begin(), more.end());
        });
        return values;
    }
    std::vector<double> norm() const { return master(masters.weights.norm, masters.remainders.norm); }
    std::vector<double> fc() const { return master(masters.weights.fc, masters.remainders.fc); }
    // One update with the given weight sum; the gradient's norm before clipping.
    double update(double lr, double weight_sum, double max_grad_norm, std::int64_t step = 1) {
        const DeviceBuffer sums(context.device(), DType::kF64, {2});
        const std::vector<double> values = {1.0, weight_sum};
        context.upload(std::span<const double>(values), sums);
        optimizer.update(context, {.lr = lr, .max_grad_norm = max_grad_norm, .step = step}, sums);
        return optimizer.gradient_norm(context);
    }
    std::int64_t parameters() const {
        std::int64_t count = 0;
        for (const NamedTensor& weight : named_tensors(masters.weights)) count += weight.tensor.elements();
        return count;
    }
    DraftSpec spec;
    Context context;
    Arena arena;
    DraftMasters masters;
    Optimizer optimizer;
};

class OptimizerTest : public testing::DeviceTest {
protected:
    static ::testing::AssertionResult agree(const std::vector<double>& got, const std::vector<double>& expected, testing::Tolerance bound) {
        return testing::close(std::span<const double>(got), std::span<const double>(expected), bound);
    }
    static ::testing::AssertionResult all_equal(const std::vector<double>& got, double expected, testing::Tolerance bound) {
        return agree(got, std::vector<double>(got.size(), expected), bound);
    }
};

// A gain of 1.0 under a constant gradient at a rate far below bf16's step at 1.0: only an f32 master moves.
TEST_P(OptimizerTest, SmallRatesMoveGainsOfOne) {
    Toy toy(device());
    toy.set_gradients(0.5F);
    for (std::int64_t step = 1; step <= 200; ++step) {
        toy.update(1e-4, 1.0, 0, step);
    }
    EXPECT_TRUE(all_equal(toy.norm(), 0.98, testing::kGradientF32));
}

TEST_P(OptimizerTest, GradientsAreScaledOnceByTheWeightSum) {
    Toy one(device());
    Toy other(device());
    one.set_gradients(3.0F);
    other.set_gradients(3.0F * 8);
    const double norm = one.update(1e-3, 2.0, 0);
    EXPECT_DOUBLE_EQ(norm, 1.5 * std::sqrt(static_cast<double>(one.parameters())));
    EXPECT_DOUBLE_EQ(other.update(1e-3, 16.0, 0), norm);
    EXPECT_TRUE(agree(one.fc(), other.fc(), testing::kOpF32));
}

TEST_P(OptimizerTest, ClipsToTheNormAndLeavesSmallGradientsAlone) {
    for (const double limit : {0.25, 1e9}) {
        Toy toy(device());
        toy.set_gradients(1.0F);
        const double norm = toy.update(1e-3, 1.0, limit);
        // The first moment is 0.1 of the clipped gradient.
        const std::vector<double> m = testing::doubles_of(toy.context, toy.optimizer.state().front().m);
        EXPECT_TRUE(all_equal(m, 0.1 * std::min(1.0, limit / norm), testing::kOpF32));
    }
}

TEST_P(OptimizerTest, NothingSupervisedIsAZeroGradient) {
    Toy toy(device());
    toy.set_gradients(0.0F);
    const std::vector<double> before = toy.fc();
    EXPECT_EQ(toy.update(1e-3, 0.0, 1), 0.0);
    EXPECT_EQ(toy.fc(), before);
}

// Muon's matrices have no second moment; norms keep AdamW's rule. Both scale the gradient once.
TEST_P(OptimizerTest, MuonMovesMatricesAndLeavesNormsToAdamW) {
    Toy muon(device(), OptimizerKind::kMuon);
    Toy adamw(device());
    for (Toy* toy : {&muon, &adamw}) {
        toy->set_gradients(2.0F);
        toy->update(1e-3, 4.0, 0);
    }
    for (std::size_t i = 0; i < muon.optimizer.state().size(); ++i) {
        const Optimizer::State& state = muon.optimizer.state()[i];
        const Optimizer::State& other = adamw.optimizer.state()[i];
        const bool is_norm = state.weight.shape.rank() == 1;
        EXPECT_EQ(state.v.defined(), is_norm) << state.name;
        EXPECT_EQ(muon.master(state.weight, state.remainder) == adamw.master(other.weight, other.remainder), is_norm) << state.name;
        EXPECT_TRUE(all_equal(testing::doubles_of(muon.context, state.m), is_norm ? 0.05 : 0.5, testing::kOpF32)) << state.name;
    }
}

DFLASH_ON_EACH_DEVICE(OptimizerTest);

}  // namespace
}  // namespace dflash
