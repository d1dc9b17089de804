// SPDX-License-Identifier: MIT
// The rule of one verify step on toy distributions: no models.
#include "generate/verify.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "generate/chi_square.h"
#include "tensor/buffer.h"
#include "tensor/cuda_runtime.h"

namespace dflash {
namespace {

using testing::follows;
using Tokens = std::vector<std::int32_t>;

constexpr std::int64_t kVocabulary = 8;

// Rows of logits whose largest is at the given tokens.
HostBuffer one_hot(const Tokens& tokens) {
    HostBuffer logits(DType::kF32, {static_cast<std::int64_t>(tokens.size()), kVocabulary});
    for (std::size_t i = 0; i < tokens.size(); ++i) logits.tensor().f32()[static_cast<std::int64_t>(i) * kVocabulary + tokens[i]] = 1;
    return logits;
}

struct GreedyCase {
    const char* name;
    Tokens target;  // what the target emits at each row, one more than drafts
    Tokens drafts;
    std::int64_t accepted;
    std::int32_t bonus;
    bool ended;
};

TEST(VerifyGreedy, KeepsDraftsWhileEqualAndStopsAtAnEndToken) {
    const Tokens end = {6, 7};
    const GreedyCase cases[] = {
        {"no drafts", {3}, {}, 0, 3, false},
        {"first wrong", {3, 1, 2}, {4, 1}, 0, 3, false},
        {"second wrong", {3, 1, 2}, {3, 2}, 1, 1, false},
        {"later agreement does not count", {3, 1, 2}, {4, 1}, 0, 3, false},
        {"all right", {3, 1, 2}, {3, 1}, 2, 2, false},
        {"end token drafted in the middle", {3, 7, 2, 2}, {3, 7, 2}, 2, -1, true},
        {"end token drafted last", {3, 6}, {3}, 1, 6, true},
        {"end token drafted first", {7, 1}, {7}, 1, -1, true},
        {"end token as the bonus", {3, 1, 7}, {3, 1}, 2, 7, true},
        {"end token in place of a draft", {7, 1}, {2}, 0, 7, true},
        {"a wrong end token", {3, 1}, {7}, 0, 3, false},
    };
    for (const GreedyCase& c : cases) {
        SCOPED_TRACE(c.name);
        Verifier verifier({}, end);
        const VerifyOutcome outcome = verifier.verify(one_hot(c.target), 10, c.drafts);
        EXPECT_EQ(outcome.accepted, c.accepted);
        EXPECT_EQ(outcome.bonus, c.bonus);
        EXPECT_EQ(outcome.ended, c.ended);
        EXPECT_EQ(outcome.committed(), c.accepted + (c.bonus < 0 ? 0 : 1));
        // The best tokens alone say the same.
        const VerifyOutcome short_way = verifier.verify(LogitRows(c.target), 10, c.drafts);
        EXPECT_EQ(short_way.accepted, c.accepted);
        EXPECT_EQ(short_way.bonus, c.bonus);
        EXPECT_EQ(short_way.ended, c.ended);
    }
}

TEST(VerifyGreedy, ThreeTokensCountWhenTheThirdEndsTheText) {
    const Tokens end = {7};
    Verifier verifier({}, end);
    const VerifyOutcome outcome = verifier.verify(one_hot({1, 2, 7, 3, 4}), 5, Tokens{1, 2, 7, 3});
    EXPECT_EQ(outcome.committed(), 3);
    EXPECT_TRUE(outcome.ended);
}

TEST(VerifyGreedy, RefusesLogitsThatDoNotFitOrAreNotNumbers) {
    Verifier verifier({}, {});
    EXPECT_THROW(verifier.verify(one_hot({1, 2}), 0, Tokens{1, 2}), Error);
    HostBuffer logits = one_hot({1, 2});
    logits.tensor().f32()[3] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_THROW(verifier.verify(logits, 0, Tokens{1}), Error);
    Tokens drafts(3);
    EXPECT_THROW(verifier.draft(one_hot({1, 2}), 0, drafts), Error);
    const Tokens best = {1, -1};  // how a row with a NaN comes from the device
    EXPECT_THROW(verifier.verify(LogitRows(best), 0, Tokens{1}), Error);
}

TEST(LogitReader, ADevicesRowsReadAsTheHosts) {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    const Device gpu{DeviceType::kCuda, 0};
    const Context context(gpu);
    const Arena arena(gpu, make_plan({"all"}, LogitReader::buffers(gpu, 3, {0, 0})));
    LogitReader reader(gpu, arena);
    const HostBuffer host = one_hot({4, 0, 6});
    const DeviceBuffer logits(gpu, DType::kF32, host.tensor().shape);
    context.upload(host.tensor().data, logits);
    const LogitRows best = reader.read(context, logits, /*greedy=*/true);
    EXPECT_EQ(Tokens(best.best.begin(), best.best.end()), (Tokens{4, 0, 6}));
    const LogitRows values = reader.read(context, logits, /*greedy=*/false);
    EXPECT_EQ(std::memcmp(values.values.data, host.tensor().data, host.tensor().bytes()), 0);
}

TEST(VerifyGreedy, DraftsAreTheDraftersLikeliest) {
    Verifier verifier({}, {});
    Tokens drafts(2);
    verifier.draft(one_hot({5, 0, 3}), 0, drafts);
    EXPECT_EQ(drafts, (Tokens{5, 0}));
}

TEST(VerifySampled, RefusesDraftsItDidNotDraw) {
    Verifier verifier({.temperature = 1}, {});
    EXPECT_THROW(verifier.verify(one_hot({1, 2}), 0, Tokens{1}), Error);
}

TEST(VerifySampled, APerfectDrafterIsAlwaysAccepted) {
    for (std::uint64_t prompt = 0; prompt < 1000; ++prompt) {
        Verifier verifier({.temperature = 1, .prompt = prompt}, {});
        Tokens drafts(3);
        verifier.draft(one_hot({5, 0, 3}), 4, drafts);
        EXPECT_EQ(verifier.verify(one_hot({5, 0, 3, 1}), 4, drafts).accepted, 3);
    }
}

TEST(VerifySampled, ADisjointDrafterIsNeverAccepted) {
    const float infinity = std::numeric_limits<float>::infinity();
    HostBuffer target(DType::kF32, {2, kVocabulary});
    HostBuffer draft(DType::kF32, {1, kVocabulary});
    for (std::int64_t t = 0; t < kVocabulary; ++t) {
        target.tensor().f32()[t] = t < 4 ? 0 : -infinity;
        draft.tensor().f32()[t] = t < 4 ? -infinity : 0;
    }
    for (std::uint64_t prompt = 0; prompt < 1000; ++prompt) {
        Verifier verifier({.temperature = 1, .prompt = prompt}, {});
        Tokens drafts(1);
        verifier.draft(draft, 0, drafts);
        const VerifyOutcome outcome = verifier.verify(target, 0, drafts);
        EXPECT_EQ(outcome.accepted, 0);
        EXPECT_LT(outcome.bonus, 4);
    }
}

// A toy language: the next token's logits depend on the last token alone. The drafter knows the anchor only, and little of the truth.
class ToyLanguage {
public:
    explicit ToyLanguage(std::uint64_t seed) : next_(table(seed, 1.0)), guess_(table(seed + 1, 1.0)) {}

    HostBuffer target_logits(std::int32_t anchor, const Tokens& drafts) const {
        HostBuffer logits(DType::kF32, {static_cast<std::int64_t>(drafts.size()) + 1, kVocabulary});
        for (std::size_t i = 0; i <= drafts.size(); ++i) copy_row(next_, i == 0 ? anchor : drafts[i - 1], logits, i);
        return logits;
    }
    HostBuffer draft_logits(std::int32_t anchor, std::int64_t count) const {
        HostBuffer logits(DType::kF32, {count, kVocabulary});
        for (std::int64_t i = 0; i < count; ++i) {
            copy_row(guess_, static_cast<std::int32_t>((anchor + i) % kVocabulary), logits, static_cast<std::size_t>(i));
        }
        return logits;
    }
    // Exact probabilities of all texts of `length` tokens after `anchor`, in order of their digits.
    std::vector<double> text_probabilities(std::int32_t anchor, int length, const SamplingSettings& settings) const {
        std::vector<double> row(kVocabulary);
        Sampler().distribution({next_.data() + anchor * kVocabulary, kVocabulary}, settings, row, "target");
        if (length == 1) return row;
        std::vector<double> all;
        for (std::int32_t token = 0; token < kVocabulary; ++token) {
            for (const double p : text_probabilities(token, length - 1, settings)) all.push_back(row[static_cast<std::size_t>(token)] * p);
        }
        return all;
    }

private:
    static std::vector<float> table(std::uint64_t seed, double scale) {
        std::vector<float> values(kVocabulary * kVocabulary);
        Philox rng(seed, 3);
        for (float& v : values) v = static_cast<float>(scale * rng.next_normal());
        return values;
    }
    static void copy_row(const std::vector<float>& table, std::int32_t row, const HostBuffer& to, std::size_t at) {
        std::memcpy(to.tensor().f32() + static_cast<std::int64_t>(at) * kVocabulary, table.data() + row * kVocabulary,
                    kVocabulary * sizeof(float));
    }
    std::vector<float> next_, guess_;
};

// `length` tokens after `anchor`, drafting `num_drafts` a step as the generator does.
Tokens speculate(const ToyLanguage& language, std::int32_t anchor, int length, std::int64_t num_drafts, const SamplingSettings& settings) {
    Verifier verifier(settings, {});
    Tokens text = {anchor};
    while (static_cast<int>(text.size()) <= length) {
        const auto position = static_cast<std::int64_t>(text.size());
        Tokens drafts(static_cast<std::size_t>(num_drafts));
        if (num_drafts > 0) verifier.draft(language.draft_logits(text.back(), num_drafts), position, drafts);
        const VerifyOutcome outcome = verifier.verify(language.target_logits(text.back(), drafts), position, drafts);
        text.insert(text.end(), drafts.begin(), drafts.begin() + outcome.accepted);
        text.push_back(outcome.bonus);
    }
    return {text.begin() + 1, text.begin() + 1 + length};
}

class SpeculativeSampling : public ::testing::TestWithParam<SamplingSettings> {};

TEST_P(SpeculativeSampling, SinglesAndPairsFollowTheTarget) {
    const ToyLanguage language(11);
    const std::int32_t anchor = 2;
    for (const std::int64_t num_drafts : {0, 1, 3}) {
        SCOPED_TRACE(num_drafts);
        std::vector<std::int64_t> singles(kVocabulary, 0);
        std::vector<std::int64_t> pairs(kVocabulary * kVocabulary, 0);
        SamplingSettings settings = GetParam();
        for (settings.prompt = 0; settings.prompt < 200000; ++settings.prompt) {
            const Tokens text = speculate(language, anchor, 2, num_drafts, settings);
            ++singles[static_cast<std::size_t>(text[0])];
            ++pairs[static_cast<std::size_t>(text[0] * kVocabulary + text[1])];
        }
        EXPECT_TRUE(follows(singles, language.text_probabilities(anchor, 1, settings)));
        EXPECT_TRUE(follows(pairs, language.text_probabilities(anchor, 2, settings)));
    }
}

INSTANTIATE_TEST_SUITE_P(Settings, SpeculativeSampling,
                         ::testing::Values(SamplingSettings{.temperature = 1, .seed = 5},
                                           SamplingSettings{.temperature = 0.6, .top_k = 5, .top_p = 0.9, .seed = 6}));

}  // namespace
}  // namespace dflash
