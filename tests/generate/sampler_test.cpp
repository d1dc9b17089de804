// SPDX-License-Identifier: MIT
#include "generate/sampler.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "base/error.h"
#include "generate/chi_square.h"
#include "support/close.h"

namespace dflash {
namespace {

using testing::close;
using testing::follows;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<double> distribution(const std::vector<float>& logits, const SamplingSettings& settings) {
    std::vector<double> probabilities(logits.size(), std::numeric_limits<double>::quiet_NaN());
    Sampler().distribution(logits, settings, probabilities, "target");
    return probabilities;
}

::testing::AssertionResult equals(const std::vector<double>& got, const std::vector<double>& wanted) {
    return close(std::span<const double>(got), std::span<const double>(wanted), testing::kOpF32);
}

TEST(Argmax, TakesTheFirstOfEquals) {
    EXPECT_EQ(argmax(std::vector<float>{1, 3, 2, 3}, "target"), 1);
    EXPECT_EQ(argmax(std::vector<float>{-5}, "target"), 0);
    EXPECT_EQ(argmax(std::vector<float>{-kInfinity, -2, -kInfinity}, "target"), 1);
    EXPECT_EQ(argmax(std::vector<float>{-1, 0, -0.0F}, "target"), 1);
}

TEST(Argmax, RefusesNotANumber) {
    for (const std::vector<float>& row : {std::vector<float>{kNan, 1}, {1, kNan}, {kNan}, {}}) EXPECT_THROW(argmax(row, "target"), Error);
}

TEST(Distribution, TemperatureDividesTheLogits) {
    const std::vector<float> logits = {0, 1, 2};
    const double a = std::exp(-4.0);
    const double b = std::exp(-2.0);
    EXPECT_TRUE(equals(distribution(logits, {.temperature = 0.5}), {a / (a + b + 1), b / (a + b + 1), 1 / (a + b + 1)}));
}

TEST(Distribution, TopKKeepsTheLikeliestAndTheFirstOfEquals) {
    const double half = 0.5;
    EXPECT_TRUE(equals(distribution({1, 3, 3, 3}, {.temperature = 1, .top_k = 2}), {0, half, half, 0}));
    EXPECT_TRUE(equals(distribution({1, 3, 2}, {.temperature = 1, .top_k = 1}), {0, 1, 0}));
    const std::vector<double> all = distribution({1, 3, 2}, {.temperature = 1});
    for (const std::int64_t k : {0, 3, 4, 1000}) EXPECT_TRUE(equals(distribution({1, 3, 2}, {.temperature = 1, .top_k = k}), all));
}

TEST(Distribution, TopPKeepsTheShortestRunThatReachesIt) {
    const std::vector<float> logits = {std::log(0.1F), std::log(0.5F), std::log(0.25F), std::log(0.15F)};
    EXPECT_TRUE(equals(distribution(logits, {.temperature = 1, .top_p = 1e-9}), {0, 1, 0, 0}));
    EXPECT_TRUE(equals(distribution(logits, {.temperature = 1, .top_p = 0.6}), {0, 2.0 / 3, 1.0 / 3, 0}));
    EXPECT_TRUE(equals(distribution(logits, {.temperature = 1, .top_p = 0.8}), {0, 5.0 / 9, 2.5 / 9, 1.5 / 9}));
    EXPECT_TRUE(equals(distribution(logits, {.temperature = 1, .top_p = 0.9999}), {0.1, 0.5, 0.25, 0.15}));
}

TEST(Distribution, TopPIsTakenOfWhatTopKLeaves) {
    const std::vector<float> logits = {std::log(0.1F), std::log(0.4F), std::log(0.3F), std::log(0.2F)};
    // Of the three left, 0.4 / 0.9 is under 0.5 and 0.7 / 0.9 above it.
    EXPECT_TRUE(equals(distribution(logits, {.temperature = 1, .top_k = 3, .top_p = 0.5}), {0, 4.0 / 7, 3.0 / 7, 0}));
}

TEST(Distribution, ImpossibleTokensStayImpossible) {
    EXPECT_TRUE(equals(distribution({-kInfinity, 2, 2}, {.temperature = 2}), {0, 0.5, 0.5}));
    EXPECT_TRUE(equals(distribution({-3e38F, 3e38F}, {.temperature = 1}), {0, 1}));
}

TEST(Distribution, RefusesNotANumberAndGreedy) {
    EXPECT_THROW(distribution({1, kNan}, {.temperature = 1}), Error);
    EXPECT_THROW(distribution({1, 2}, {.temperature = 0}), Error);
}

TEST(CheckSampling, NamesTheFlag) {
    const auto message = [](const SamplingSettings& settings) -> std::string {
        try {
            check_sampling(settings);
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(message({}), "");
    EXPECT_EQ(message({.temperature = 0.7, .top_k = 20, .top_p = 0.8}), "");
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const double t : {-1.0, nan, std::numeric_limits<double>::infinity()}) {
        EXPECT_NE(message({.temperature = t}).find("--temperature"), std::string::npos) << t;
    }
    EXPECT_NE(message({.top_k = -1}).find("--top-k"), std::string::npos);
    for (const double p : {0.0, -0.5, 1.5, nan}) EXPECT_NE(message({.top_p = p}).find("--top-p"), std::string::npos) << p;
}

TEST(DrawToken, FollowsTheCumulatedWeights) {
    const std::vector<double> weights = {0, 1, 0, 3, 0};
    EXPECT_EQ(draw_token(weights, 0), 1);
    EXPECT_EQ(draw_token(weights, 0.2499), 1);
    EXPECT_EQ(draw_token(weights, 0.25), 3);
    EXPECT_EQ(draw_token(weights, std::nextafter(1.0, 0.0)), 3);
    EXPECT_THROW(draw_token(std::vector<double>{0, 0}, 0.5), Error);
}

TEST(UniformDraw, EachKeyHasItsOwnNumberAndRepeatsIt) {
    std::set<double> seen;
    int keys = 0;
    for (const std::uint64_t seed : {0, 1}) {
        for (const std::uint64_t prompt : {0, 1}) {
            for (const std::int64_t position : {0, 1, 2}) {
                for (const Draw purpose : {Draw::kDraft, Draw::kAccept, Draw::kToken}) {
                    const SamplingSettings settings{.temperature = 1, .seed = seed, .prompt = prompt};
                    const double value = uniform_draw(settings, position, purpose);
                    EXPECT_EQ(value, uniform_draw(settings, position, purpose));
                    EXPECT_TRUE(value >= 0 && value < 1);
                    seen.insert(value);
                    ++keys;
                }
            }
        }
    }
    EXPECT_EQ(static_cast<int>(seen.size()), keys);
}

TEST(UniformDraw, SamplesFollowTheDistribution) {
    const std::vector<float> logits = {0.5F, -1, 2, 0, 1.5F};
    SamplingSettings settings{.temperature = 1.3, .top_k = 4, .top_p = 0.95, .seed = 7};
    const std::vector<double> probabilities = distribution(logits, settings);
    std::vector<std::int64_t> counts(logits.size(), 0);
    for (std::int64_t i = 0; i < 100000; ++i) {
        ++counts[static_cast<std::size_t>(draw_token(probabilities, uniform_draw(settings, i, Draw::kToken)))];
    }
    EXPECT_TRUE(follows(counts, probabilities));
}

}  // namespace
}  // namespace dflash
