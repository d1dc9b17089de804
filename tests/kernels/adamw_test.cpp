// SPDX-License-Identifier: MIT
#include "kernels/adamw.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/loss_sums.h"
#include "kernels/ref/adamw.h"
#include "support/close.h"
#include "support/data.h"
#include "support/device_case.h"

namespace dflash {
namespace {

using testing::close;
using testing::f64_tensor;
using testing::random_f32;
using testing::to_double;

struct State {
    State(std::int64_t n, std::uint64_t seed, float decay)
        : weight(random_f32({n}, seed)),
          gradient(random_f32({n}, seed + 1)),
          m(DType::kF32, {n}),
          v(DType::kF32, {n}),
          tensor{.weight = weight, .remainder = {}, .gradient = gradient, .m = m, .v = v, .weight_decay = decay} {}
    HostBuffer weight, gradient, m, v;
    AdamWTensor tensor;
};

TEST(AdamW, SeveralStepsOverTensorsOfOddSizesMatchTheReference) {
    const Context context;
    const HostBuffer half = f64_tensor({0.5});
    std::vector<State> states;
    std::vector<AdamWTensor> tensors;
    std::uint64_t seed = 1;
    for (const std::int64_t n : {1, 17, 0, 9000, 4099}) states.emplace_back(n, seed += 10, n % 2 == 0 ? 0.1F : 0.0F);
    for (const State& s : states) tensors.push_back(s.tensor);
    std::vector<std::vector<double>> weight, m, v;
    for (const State& s : states) {
        weight.push_back(to_double(s.weight));
        m.push_back(to_double(s.m));
        v.push_back(to_double(s.v));
    }
    for (std::int64_t step = 1; step <= 20; ++step) {
        for (std::size_t i = 0; i < states.size(); ++i) {
            const HostBuffer fresh = random_f32({states[i].gradient.tensor().elements()}, seed += 1);
            if (fresh.tensor().elements() > 0) std::memcpy(states[i].gradient.tensor().data, fresh.tensor().data, fresh.tensor().bytes());
            const ref::AdamWSettings<double> settings{1e-2F, 0.9F, 0.999F, 1e-8F, states[i].tensor.weight_decay, 0.5, step};
            ref::adamw_step(weight[i].data(), to_double(fresh).data(), m[i].data(), v[i].data(), fresh.tensor().elements(), settings);
        }
        adamw_step(context, {.tensors = &tensors, .lr = 1e-2F, .step = step, .grad_scale = half});
    }
    for (std::size_t i = 0; i < states.size(); ++i) {
        if (weight[i].empty()) continue;
        EXPECT_TRUE(close(states[i].weight, weight[i], testing::kGradientF32)) << "tensor " << i;
        EXPECT_TRUE(close(states[i].m, m[i], testing::kGradientF32)) << "tensor " << i;
        EXPECT_TRUE(close(states[i].v, v[i], testing::kGradientF32)) << "tensor " << i;
    }
}

// A gain of 1 moves by the rate in each step of a constant gradient: small rates are not lost to rounding.
TEST(AdamW, AGainOfOneMovesByTheRateInEachOf200Steps) {
    const Context context;
    const HostBuffer one = f64_tensor({1.0});
    State s(33, 1, 0.0F);
    for (std::int64_t i = 0; i < 33; ++i) {
        s.weight.tensor().f32()[i] = 1.0F;
        s.gradient.tensor().f32()[i] = 0.25F;
    }
    std::vector<AdamWTensor> tensors = {s.tensor};
    for (std::int64_t step = 1; step <= 200; ++step)
        adamw_step(context, {.tensors = &tensors, .lr = 1e-4F, .step = step, .grad_scale = one});
    const std::vector<double> expected(33, 1.0 - 200 * 1e-4);
    EXPECT_TRUE(close(s.weight, expected, testing::kGradientF32));
}

TEST(AdamW, AZeroGradientLeavesAWeightWithoutDecay) {
    const Context context;
    const HostBuffer one = f64_tensor({1.0});
    State s(5, 1, 0.0F);
    std::memset(s.gradient.tensor().data, 0, s.gradient.tensor().bytes());
    const std::vector<double> before = to_double(s.weight);
    std::vector<AdamWTensor> tensors = {s.tensor};
    adamw_step(context, {.tensors = &tensors, .lr = 1e-2F, .grad_scale = one});
    EXPECT_EQ(before, to_double(s.weight));
}

TEST(AdamW, AScaleThatIsNotFiniteLeavesEverythingAsItIs) {
    const Context context;
    State s(40, 3, 0.1F);
    const std::vector<double> before = to_double(s.weight);
    std::vector<AdamWTensor> tensors = {s.tensor};
    const HostBuffer scale = f64_tensor({std::numeric_limits<double>::quiet_NaN()});
    adamw_step(context, {.tensors = &tensors, .lr = 1e-2F, .grad_scale = scale});
    EXPECT_EQ(before, to_double(s.weight));
    EXPECT_EQ(std::vector<double>(40, 0.0), to_double(s.m));
}

struct Scale {
    double norm, scale;
};
Scale scale_of(const std::vector<Tensor>& gradients, double loss_sum, double weight_sum, double max_norm) {
    const Context context;
    const HostBuffer sums = f64_tensor({loss_sum, weight_sum}), norm = f64_tensor({-1}), scale = f64_tensor({-1});
    gradient_scale(context, {.gradients = &gradients, .sums = sums, .max_norm = max_norm, .norm = norm, .scale = scale});
    return {*norm.tensor().f64(), *scale.tensor().f64()};
}

TEST(GradientScale, MatchesDoubleAndRepeatsItsBits) {
    const HostBuffer a = random_f32({100003}, 1, 1e-4), b = random_f32({7}, 2), none = random_f32({0}, 3);
    double squares = 0;
    for (const double x : to_double(a)) squares += x * x;
    for (const double x : to_double(b)) squares += x * x;
    const Scale got = scale_of({a, none, b}, 1.0, 4.0, 0);
    const std::vector<double> expected = {std::sqrt(squares) / 4.0, 0.25};
    EXPECT_TRUE(
        close(std::span<const double>(std::vector<double>{got.norm, got.scale}), std::span<const double>(expected), testing::kChunkF32));
    EXPECT_EQ(got.norm, scale_of({a, none, b}, 1.0, 4.0, 0).norm);
    EXPECT_EQ(scale_of({}, 1.0, 2.0, 0).norm, 0.0);
}

TEST(GradientScale, ClipsLargerNormsAndLeavesSmallerOnes) {
    const HostBuffer g = random_f32({64}, 5);
    const Scale free = scale_of({g}, 1.0, 2.0, 0);
    EXPECT_EQ(scale_of({g}, 1.0, 2.0, 2 * free.norm).scale, free.scale);
    EXPECT_EQ(scale_of({g}, 1.0, 2.0, free.norm / 4).scale, free.scale * (free.norm / 4 / free.norm));
}

TEST(GradientScale, NoWeightGivesZeroAndWhatIsNotFiniteGivesNaN) {
    const HostBuffer g = random_f32({64}, 5);
    const Scale nothing = scale_of({g}, 0.0, 0.0, 1.0);
    EXPECT_EQ(nothing.norm, 0.0);
    EXPECT_EQ(nothing.scale, 0.0);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    EXPECT_TRUE(std::isnan(scale_of({g}, nan, 1.0, 1.0).scale));
    g.tensor().f32()[3] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(scale_of({g}, 1.0, 1.0, 1.0).scale));
    g.tensor().f32()[3] = std::numeric_limits<float>::infinity();
    EXPECT_TRUE(std::isnan(scale_of({g}, 1.0, 1.0, 1.0).scale));
}

// Masters as the device keeps them: f32 on the CPU; on CUDA bf16 and the rest of the same 32 bits, with bf16 gradients.
class AdamWOnDevice : public testing::DeviceTest {
protected:
    static std::vector<std::uint16_t> upper(const std::vector<float>& values) {
        std::vector<std::uint16_t> bits;
        for (const float value : values) bits.push_back(static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + 0x8000U) >> 16));
        return bits;
    }
    static float joined(std::uint16_t high, std::uint16_t low) {
        const auto rest = static_cast<std::uint32_t>(static_cast<std::int32_t>(static_cast<std::int16_t>(low)));
        return std::bit_cast<float>((static_cast<std::uint32_t>(high) << 16) + rest);
    }
};

TEST_P(AdamWOnDevice, MastersFollowTheReferenceInAllTheirBits) {
    constexpr std::int64_t kSize = 8192 + 4099;
    const bool split = device().type == DeviceType::kCuda;
    const HostBuffer start = random_f32({kSize}, 3), gradient = random_f32({kSize}, 4), whole = random_f32({kSize}, 3);
    const std::vector<float> first(start.tensor().f32(), start.tensor().f32() + kSize);
    const Tensor gradient_in = in(gradient);
    const DeviceBuffer weight(device(), DType::kBF16, {kSize}), remainder(device(), DType::kU16, {kSize});
    const DeviceBuffer m(device(), DType::kF32, {kSize}), v(device(), DType::kF32, {kSize}), scale(device(), DType::kF64, {1});
    std::vector<std::uint16_t> high = upper(first), low;
    for (const float value : first) low.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value)));
    context().upload(high.data(), weight.tensor());
    context().upload(low.data(), remainder.tensor());
    const double half = 0.5;
    context().upload(&half, scale.tensor());
    std::vector<AdamWTensor> tensors = {{.weight = split ? weight.tensor() : whole.tensor(),
                                         .remainder = split ? remainder.tensor() : Tensor{},
                                         .gradient = gradient_in,
                                         .m = m.tensor(),
                                         .v = v.tensor()}};
    std::vector<double> expected = to_double(start), m64(kSize), v64(kSize);
    for (std::int64_t step = 1; step <= 20; ++step) {
        adamw_step(context(), {.tensors = &tensors, .lr = 1e-4F, .step = step, .grad_scale = scale.tensor()});
        const ref::AdamWSettings<double> settings{1e-4F, 0.9F, 0.999F, 1e-8F, 0.0, 0.5, step};
        ref::adamw_step(expected.data(), to_double(gradient).data(), m64.data(), v64.data(), kSize, settings);
    }
    std::vector<float> got(whole.tensor().f32(), whole.tensor().f32() + kSize);
    if (split) {
        context().download(weight.tensor(), high.data());
        context().download(remainder.tensor(), low.data());
        for (std::size_t i = 0; i < got.size(); ++i) got[i] = joined(high[i], low[i]);
        EXPECT_EQ(high, upper(got)) << "the bf16 part is the f32 value rounded to nearest";
    }
    EXPECT_TRUE(close(std::span<const float>(got), std::span<const double>(expected), testing::kGradientF32));
}

TEST_P(AdamWOnDevice, GradientScaleAgreesAndNanLeavesWeightsAlone) {
    const HostBuffer a = random_f32({100003}, 1, 1e-2), b = random_f32({7}, 2);
    const std::vector<Tensor> gradients = {in(a), in(b)};
    const HostBuffer sums = f64_tensor({1.0, 4.0}), norm = f64_tensor({0}), scale = f64_tensor({0}), weight = random_f32({40}, 6);
    double squares = 0;
    for (const HostBuffer* buffer : {&a, &b}) {
        for (const double x : to_double(*buffer)) squares += x * x;
    }
    const Tensor norm_out = in_out(norm), scale_out = in_out(scale), sums_in = in(sums);
    gradient_scale(context(), {.gradients = &gradients, .sums = sums_in, .max_norm = 0.5, .norm = norm_out, .scale = scale_out});
    finish();
    const double expected_norm = std::sqrt(squares) / 4.0;
    const std::vector<double> got = {*norm.tensor().f64(), *scale.tensor().f64()};
    const std::vector<double> expected = {expected_norm, 0.25 * std::min(1.0, 0.5 / expected_norm)};
    EXPECT_TRUE(close(std::span<const double>(got), std::span<const double>(expected), testing::kOpF32));

    const HostBuffer bad = f64_tensor({std::numeric_limits<double>::quiet_NaN(), 4.0});
    gradient_scale(context(), {.gradients = &gradients, .sums = in(bad), .max_norm = 0.5, .norm = norm_out, .scale = scale_out});
    gradient_scale(context(), {.gradients = &gradients, .sums = sums_in, .max_norm = 0.5, .norm = norm_out, .scale = scale_out});
    const std::vector<double> before = to_double(weight);
    const HostBuffer m(DType::kF32, {40}), v(DType::kF32, {40}), gradient = random_f32({40}, 7);
    std::vector<AdamWTensor> tensors = {{.weight = in_out(weight, testing::kAsIs),
                                         .remainder = {},
                                         .gradient = in(gradient),
                                         .m = in_out(m, testing::kAsIs),
                                         .v = in_out(v, testing::kAsIs)}};
    adamw_step(context(), {.tensors = &tensors, .lr = 1e-2F, .grad_scale = scale_out});
    finish();
    EXPECT_TRUE(std::isnan(*scale.tensor().f64())) << "a NaN stays until somebody has looked";
    EXPECT_EQ(before, to_double(weight));
}

DFLASH_ON_EACH_DEVICE(AdamWOnDevice);

}  // namespace
}  // namespace dflash
