// SPDX-License-Identifier: MIT
#include "tensor/host_reader.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "base/bf16.h"
#include "base/rng.h"
#include "tensor/cuda_runtime.h"

namespace dflash {
namespace {

// Every float, negative zero, subnormals and infinities included, comes back from its halves, and the high one is a nearest bf16.
TEST(SplitFloat, HalvesJoinToTheSameBits) {
    Philox rng(1, 2);
    for (int i = 0; i < 200000; ++i) {
        const auto bits = static_cast<std::uint32_t>(rng.next_below(std::uint64_t{1} << 32));
        const float value = std::bit_cast<float>(bits);
        if (value != value) continue;
        const SplitFloat halves = split_float(value);
        ASSERT_EQ(std::bit_cast<std::uint32_t>(join_float(halves)), bits);
        const float down = std::bit_cast<float>(bits & 0xffff0000U);
        if (std::abs(value) > 3e38F) continue;
        ASSERT_LE(std::abs(bf16_to_float(halves.high) - value), std::abs(value - down)) << bits;
    }
}

TEST(HostReader, OnTheCpuThePartIsTheTensorItself) {
    const HostBuffer x(DType::kF32, {3, 5});
    HostReader reader(Stream{});
    int parts = 0;
    const auto visit = [&](const Tensor& part) {
        EXPECT_EQ(part.data, x.tensor().data);
        EXPECT_EQ(part.shape, (Shape{15}));
        ++parts;
    };
    reader.read(x, visit);
    reader.read_master(x, {}, visit);
    EXPECT_EQ(parts, 2);
}

// More than one part, and a cut at the end.
TEST(HostReader, FromAGpuPartsCoverTheTensorAndMastersAreJoined) {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    const Device gpu{DeviceType::kCuda, 0};
    const std::int64_t n = 5000001;
    std::vector<float> values(static_cast<std::size_t>(n));
    std::vector<std::uint16_t> high(values.size()), low(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = 1.0F / static_cast<float>(i + 1);
        const SplitFloat halves = split_float(values[i]);
        high[i] = halves.high;
        low[i] = halves.low;
    }
    const DeviceBuffer whole(gpu, DType::kF32, {n}), weight(gpu, DType::kBF16, {n}), remainder(gpu, DType::kU16, {n});
    const Stream stream{gpu, nullptr};
    cuda::copy(stream, whole.tensor().data, values.data(), whole.tensor().bytes());
    cuda::copy(stream, weight.tensor().data, high.data(), weight.tensor().bytes());
    cuda::copy(stream, remainder.tensor().data, low.data(), remainder.tensor().bytes());
    HostReader reader(stream);
    for (const bool joined : {false, true}) {
        std::vector<float> seen;
        const auto visit = [&](const Tensor& part) { seen.insert(seen.end(), part.f32(), part.f32() + part.elements()); };
        joined ? reader.read_master(weight, remainder, visit) : reader.read(whole, visit);
        EXPECT_EQ(seen, values);
    }
}

}  // namespace
}  // namespace dflash
