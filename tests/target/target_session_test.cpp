// SPDX-License-Identifier: MIT
// Decoding: greedy ids of both bundled targets; and the law that everything rests on: what a token's logits are depends, to the bit, on
// the tokens before it alone, however they were verified, rejected and rewound.
#include "target/target_session.h"

#include <gtest/gtest.h>

#include <cstring>

#include "io/json.h"
#include "support/close.h"
#include "support/device_case.h"
#include "support/errors.h"
#include "support/temporary_folder.h"
#include "target/loaded_target.h"
#include "target/toy_target.h"

namespace dflash {
namespace {

using namespace dflash::testing;  // NOLINT: test helpers

const std::string kFixtures = DFLASH_FIXTURES;

Ids random_ids(std::int64_t n, std::int64_t vocabulary, std::uint64_t seed) {
    Philox rng(seed, 3);
    Ids ids;
    for (std::int64_t i = 0; i < n; ++i) ids.push_back(static_cast<std::int32_t>(rng.next_below(static_cast<std::uint64_t>(vocabulary))));
    return ids;
}

struct BundledTarget {
    const char* folder;
    const char* name;
};
const auto kBundled = ::testing::Values(BundledTarget{"tiny-qwen3", "Qwen3"}, BundledTarget{"tiny-qwen3.5", "Hybrid"});

class Greedy : public DeviceCases<BundledTarget> {
protected:
    std::int32_t best(const LoadedTarget& target, std::int64_t row) const {
        const std::vector<float> logits = target.values(target.session->logits().slice_rows(row, 1));
        return testing::argmax(logits.data(), std::ssize(logits));
    }
};

// Every next id, given the golden ones before it. In bf16 near-ties may fall otherwise.
TEST_P(Greedy, IdsEqualTheGolden) {
    const std::string folder = kFixtures + "/" + c_.folder;
    LoadedTarget target(folder, {}, TargetSessionSettings{256, 128, 4, {}}, device());
    const Json golden = read_json_file(kFixtures + "/golden/greedy.json")[c_.folder];
    ASSERT_GT(golden.size(), 0U);
    std::int64_t ids = 0, equal = 0;
    for (const Json& entry : golden) {
        const Ids expected = entry["greedy_ids"].get<Ids>();
        target.session->prefill(target.context, entry["prompt_ids"].get<Ids>());
        for (const std::int32_t id : expected) {
            ++ids;
            equal += best(target, 0) == id ? 1 : 0;
            target.session->step(target.context, std::vector{id});
            target.session->commit(target.context, 1);
        }
    }
    EXPECT_GE(equal, device().type == DeviceType::kCpu ? ids : (ids * 9 + 9) / 10) << "of " << ids;
}

DFLASH_CASES_ON_EACH_DEVICE(Targets, Greedy, kBundled);

// What a session holds after `length` committed tokens, and the logits and taps that led there.
struct Trace {
    std::vector<std::vector<float>> logits, taps;  // by position of the token fed in
    std::vector<std::vector<float>> kept;          // recurrent states and convolution windows, layer by layer
};

void record_kept(const LoadedTarget& target, Trace& trace) {
    trace.kept.clear();
    for (std::int64_t layer = 0; layer < target.config.layers; ++layer) {
        if (target.config.layer_kinds[static_cast<std::size_t>(layer)] != TargetLayerKind::kLinearAttention) continue;
        trace.kept.push_back(target.values(target.session->recurrent_state(layer)));
        trace.kept.push_back(target.values(target.session->conv_history(layer)));
    }
}

void record_rows(const LoadedTarget& target, std::int64_t rows, Trace& trace) {
    for (std::int64_t row = 0; row < rows; ++row) {
        trace.logits.push_back(target.values(target.session->logits().slice_rows(row, 1)));
        trace.taps.push_back(target.values(target.session->taps().slice_rows(row, 1)));
    }
}

Trace decode_one_by_one(LoadedTarget& target, const Ids& prompt, const Ids& text) {
    Trace trace;
    target.session->prefill(target.context, prompt);
    for (const std::int32_t token : text) {
        target.session->step(target.context, std::vector{token});
        record_rows(target, 1, trace);
        target.session->commit(target.context, 1);
    }
    record_kept(target, trace);
    return trace;
}

// Verifies blocks of `block` tokens of which only the first `right` are the text's; the others are wrong and get rejected.
Trace decode_in_blocks(LoadedTarget& target, const Ids& prompt, const Ids& text, std::int64_t block, std::int64_t right) {
    Trace trace;
    target.session->prefill(target.context, prompt);
    for (std::int64_t done = 0; done < std::ssize(text);) {
        const std::int64_t keep = std::min(right, std::ssize(text) - done);
        Ids tokens(text.begin() + done, text.begin() + done + keep);
        while (std::ssize(tokens) < block) tokens.push_back((tokens.back() + 7) % 90);
        target.session->step(target.context, tokens);
        EXPECT_EQ(target.session->logits().rows(), block);
        EXPECT_EQ(target.session->length(), std::ssize(prompt) + done);
        record_rows(target, keep, trace);
        target.session->commit(target.context, keep);
        done += keep;
        EXPECT_EQ(target.session->length(), std::ssize(prompt) + done);
    }
    record_kept(target, trace);
    return trace;
}

struct Family {
    toy::Kind kind;
    const char* name;
};
class Session : public DeviceCases<Family> {
protected:
    Session() : toy(make_toy_target(c_.kind)) { save_toy_target(toy, folder.path()); }
    LoadedTarget load(const TargetSessionSettings& settings) const { return LoadedTarget(folder.path(), {}, settings, device()); }
    ::testing::AssertionResult agrees(const std::vector<float>& got, const std::vector<double>& expected) const {
        return close(std::span<const float>(got), std::span<const double>(expected), tolerance(kModelF32));
    }
    TemporaryFolder folder;
    ToyTarget toy;
    const Ids prompt = random_ids(70, 97, 1);
    const Ids text = random_ids(20, 97, 2);
};

// A drafter that is wrong at slot 1, 2, ..., block: logits, taps, recurrent state and convolution window equal plain decoding's, bit for bit.
TEST_P(Session, RejectedTailsLeaveNoTrace) {
    for (const std::int64_t rows : {8, 5, 16}) {
        LoadedTarget target = load({128, 64, rows, {0, 2}});
        const Trace plain = decode_one_by_one(target, prompt, text);
        for (std::int64_t right = 1; right <= rows; ++right) {
            for (const std::int64_t block : {right, rows}) {
                const Trace blocks = decode_in_blocks(target, prompt, text, block, right);
                EXPECT_EQ(blocks.logits, plain.logits) << rows << " rows, " << right << " right of " << block;
                EXPECT_EQ(blocks.taps, plain.taps) << rows << " rows, " << right << " right of " << block;
                EXPECT_EQ(blocks.kept, plain.kept) << rows << " rows, " << right << " right of " << block;
            }
        }
    }
}

TEST_P(Session, AStepThatIsNotCommittedIsUndone) {
    LoadedTarget target = load({128, 64, 4, {0}});
    const Trace plain = decode_one_by_one(target, prompt, text);
    target.session->prefill(target.context, prompt);
    target.session->step(target.context, std::vector<std::int32_t>{1, 2, 3});
    target.session->commit(target.context, 0);
    target.session->step(target.context, std::vector<std::int32_t>{4, 5, 6, 7});
    Trace again;
    for (const std::int32_t token : text) {
        target.session->step(target.context, std::vector{token});
        record_rows(target, 1, again);
        target.session->commit(target.context, 1);
    }
    record_kept(target, again);
    EXPECT_EQ(again.logits, plain.logits);
    EXPECT_EQ(again.kept, plain.kept);
}

TEST_P(Session, MatchesTheDoubleReferenceInPromptAndSteps) {
    LoadedTarget target = load({128, 32, 4, {0, 2}});
    const Trace trace = decode_in_blocks(target, prompt, text, 4, 3);
    Ids all = prompt;
    all.insert(all.end(), text.begin(), text.end());
    const auto expected = toy::Reference(toy).run(all);
    for (std::size_t i = 0; i < text.size(); ++i) {
        const std::size_t token = prompt.size() + i;
        EXPECT_TRUE(agrees(trace.logits[i], expected.back()[token])) << i;
        std::vector<double> taps = expected[1][token];
        taps.insert(taps.end(), expected[3][token].begin(), expected[3][token].end());
        EXPECT_TRUE(agrees(trace.taps[i], taps)) << i;
    }
    target.session->prefill(target.context, prompt);
    EXPECT_EQ(target.session->length(), std::ssize(prompt));
    EXPECT_EQ(target.session->logits().rows(), 1);
    EXPECT_EQ(target.session->taps().rows(), std::ssize(prompt));
    std::vector<double> taps;
    for (std::size_t token = 0; token < prompt.size(); ++token) {
        taps.insert(taps.end(), expected[1][token].begin(), expected[1][token].end());
        taps.insert(taps.end(), expected[3][token].begin(), expected[3][token].end());
    }
    EXPECT_TRUE(agrees(target.values(target.session->taps()), taps));
    EXPECT_TRUE(agrees(target.values(target.session->logits()), expected.back()[prompt.size() - 1]));
}

// Prompts around and beyond the chunk, down to one token.
TEST_P(Session, PromptsOfAnyLength) {
    for (const std::int64_t chunk : {1, 3, 64, 100}) {
        LoadedTarget target = load({128, chunk, 2, {}});
        EXPECT_FALSE(target.session->taps().defined());
        for (const std::int64_t n : {1, 2, 63, 64, 65, 128}) {
            const Ids ids = random_ids(n, 97, static_cast<std::uint64_t>(n));
            target.session->prefill(target.context, ids);
            const auto expected = toy::Reference(toy).run(ids);
            EXPECT_TRUE(agrees(target.values(target.session->logits()), expected.back().back())) << n << " tokens in chunks of " << chunk;
        }
    }
}

TEST_P(Session, ANewPromptStartsOver) {
    LoadedTarget target = load({128, 64, 4, {0}});
    const Trace first = decode_one_by_one(target, prompt, text);
    decode_in_blocks(target, random_ids(30, 97, 9), random_ids(9, 97, 8), 4, 2);
    const Trace again = decode_one_by_one(target, prompt, text);
    EXPECT_EQ(again.logits, first.logits);
    EXPECT_EQ(again.kept, first.kept);
}

TEST_P(Session, FillsItsCachesToTheLastRow) {
    LoadedTarget target = load({72, 72, 8, {0}});
    target.session->prefill(target.context, prompt);
    target.session->step(target.context, std::vector<std::int32_t>{1, 2});
    target.session->commit(target.context, 2);
    EXPECT_EQ(target.session->length(), 72);
    EXPECT_THROW(target.session->step(target.context, std::vector<std::int32_t>{1}), Error);
}

DFLASH_CASES_ON_EACH_DEVICE(Families, Session,
                            ::testing::Values(Family{toy::Kind::kQwen3, "Qwen3"}, Family{toy::Kind::kHybrid, "Hybrid"},
                                              Family{toy::Kind::kLlama3, "Llama3"}));

TEST(SessionArguments, RefusesWhatDoesNotFit) {
    const TemporaryFolder folder;
    save_toy_target(make_toy_target(toy::Kind::kHybrid), folder.path());
    LoadedTarget target(folder.path(), {}, TargetSessionSettings{16, 8, 4, {}});
    const TargetSession& session = *target.session;
    EXPECT_TRUE(refuses([&] { target.session->prefill(target.context, Ids{}); }, {"empty"}));
    EXPECT_TRUE(refuses([&] { target.session->prefill(target.context, random_ids(17, 97, 1)); }, {"17", "16"}));
    EXPECT_THROW(target.session->step(target.context, Ids{1}), Error);
    target.session->prefill(target.context, random_ids(5, 97, 1));
    EXPECT_THROW(target.session->step(target.context, Ids{1, 2, 3, 4, 5}), Error);
    EXPECT_THROW(target.session->step(target.context, Ids{}), Error);
    EXPECT_THROW(target.session->commit(target.context, 1), Error);
    target.session->step(target.context, Ids{1, 2});
    EXPECT_THROW(target.session->commit(target.context, 3), Error);
    EXPECT_EQ(session.length(), 5);
}

// The bundled targets at their real sizes: verify tiles of 8 and 16 against plain decoding.
class SessionOfBundled : public DeviceCases<BundledTarget> {};

TEST_P(SessionOfBundled, BlocksEqualPlainDecoding) {
    for (const std::int64_t rows : {8, 16}) {
        LoadedTarget target(kFixtures + "/" + c_.folder, {}, TargetSessionSettings{256, 128, rows, {1, 3}}, device());
        const Ids prompt = random_ids(50, 4000, 5), text = random_ids(33, 4000, 6);
        const Trace plain = decode_one_by_one(target, prompt, text);
        for (const std::int64_t right : {std::int64_t{1}, std::int64_t{3}, rows}) {
            const Trace blocks = decode_in_blocks(target, prompt, text, rows, right);
            EXPECT_EQ(blocks.logits, plain.logits) << rows << " rows, " << right << " right";
            EXPECT_EQ(blocks.taps, plain.taps) << rows << " rows, " << right << " right";
            EXPECT_EQ(blocks.kept, plain.kept) << rows << " rows, " << right << " right";
        }
    }
}

DFLASH_CASES_ON_EACH_DEVICE(Targets, SessionOfBundled, kBundled);

}  // namespace
}  // namespace dflash
