// SPDX-License-Identifier: MIT
// The draft-verify loop on the bundled targets: whatever the drafter proposes, greedy output, caches and states are those of plain decoding.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "generate/scripted_proposer.h"
#include "generate/tiny_decoder.h"
#include "support/device_case.h"
#include "support/errors.h"

namespace dflash {
namespace {

using testing::golden_texts;
using testing::GoldenText;
using testing::ScriptedProposer;
using testing::tiny_draft_spec;
using testing::tiny_folder;
using testing::TinyDecoder;
using Tokens = std::vector<std::int32_t>;

constexpr std::int64_t kNewTokens = 48;
constexpr GeneratorSettings kSizes{.max_tokens = 200, .max_prompt = 128, .block_size = 8};

GenerateSettings greedy(std::int64_t max_new_tokens, Tokens end_tokens = {}) {
    GenerateSettings settings;
    settings.max_new_tokens = max_new_tokens;
    settings.end_tokens = std::move(end_tokens);
    return settings;
}

Tokens joined(const Tokens& a, const Tokens& b) {
    Tokens all = a;
    all.insert(all.end(), b.begin(), b.end());
    return all;
}

struct TinyTarget {
    const char* folder;
    const char* name;
};
class Decode : public testing::DeviceCases<TinyTarget> {
protected:
    GeneratorSettings on_device(GeneratorSettings settings) const {
        settings.device = device();
        return settings;
    }
    TinyDecoder decoder(const std::optional<DraftSpec>& spec, const GeneratorSettings& settings = kSizes) const {
        return TinyDecoder(c_.folder, spec, on_device(settings));
    }
    DraftSpec spec_for(std::int64_t block_size, std::int64_t shift = 0) const {
        return tiny_draft_spec(read_target_config(tiny_folder(c_.folder)), block_size, shift);
    }
    std::vector<GoldenText> texts() const { return golden_texts(c_.folder); }
    std::unique_ptr<ScriptedProposer> scripted(const TinyDecoder& tiny, const Tokens& text, ScriptedProposer::Rule is_right) const {
        return std::make_unique<ScriptedProposer>(tiny.draft->spec, text, std::move(is_right), device());
    }
};

TEST_P(Decode, PlainGreedyGivesTheGoldenTokens) {
    TinyDecoder tiny = decoder({});
    const auto generator = tiny.make_generator();
    std::int64_t equal = 0;
    for (const GoldenText& text : texts()) {
        const GenerateResult result = generator->generate(tiny.context, text.prompt, greedy(64, tiny.target.end_tokens), false);
        equal += result.output_ids == text.greedy ? 1 : 0;
        EXPECT_EQ(result.ended, result.output_ids.back() == 4094);
        EXPECT_EQ(result.verify_steps, static_cast<std::int64_t>(result.output_ids.size()) - 1);
        EXPECT_EQ(result.verified_tokens, result.verify_steps);
    }
    // A near-tie that falls otherwise in bf16 changes all that follows: the same in most texts.
    const std::int64_t all = std::ssize(texts());
    EXPECT_GE(equal, device().type == DeviceType::kCpu ? all : all / 2 + 1);
}

TEST_P(Decode, AnyDrafterGivesPlainGreedy) {
    for (const std::int64_t block_size : {2, 7, 16}) {
        for (const std::int64_t shift : {0, 1}) {
            if (shift == 1 && block_size != 7) continue;
            SCOPED_TRACE(::testing::Message() << "block " << block_size << " shift " << shift);
            TinyDecoder tiny = decoder(spec_for(block_size, shift));
            const auto generator = tiny.make_generator();
            const Tokens prompt = texts()[1].prompt;
            const GenerateSettings settings = greedy(kNewTokens, tiny.target.end_tokens);
            const GenerateResult result = generator->generate(tiny.context, prompt, settings, true);
            EXPECT_EQ(result.output_ids, generator->generate(tiny.context, prompt, settings, false).output_ids);
            EXPECT_EQ(result.verified_tokens, static_cast<std::int64_t>(result.output_ids.size()) - 1);
        }
    }
}

// A perfect drafter commits W tokens a step, so the tokens after the prompt's own fall on slots 0 .. W-1 in turn.
TEST_P(Decode, AnEndTokenAtEverySlotStopsAsPlainDecodingDoes) {
    const std::int64_t width = 8;
    TinyDecoder tiny = decoder(spec_for(width));
    const Tokens prompt = texts()[3].prompt;
    const Tokens plain = tiny.make_generator()->generate(tiny.context, prompt, greedy(kNewTokens), false).output_ids;
    const auto perfect = tiny.make_generator(scripted(tiny, joined(prompt, plain), [](std::int64_t, std::int64_t) { return true; }));
    const auto random = tiny.make_generator();
    std::set<std::int64_t> slots;
    for (std::size_t i = 1; i < plain.size() && std::ssize(slots) < width; ++i) {
        if (std::find(plain.begin(), plain.begin() + static_cast<std::ptrdiff_t>(i), plain[i]) !=
            plain.begin() + static_cast<std::ptrdiff_t>(i)) {
            continue;  // it would end the text earlier
        }
        const Tokens wanted(plain.begin(), plain.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        const auto count = static_cast<std::int64_t>(i);  // tokens that verify steps commit
        const GenerateResult result = perfect->generate(tiny.context, prompt, greedy(kNewTokens, {plain[i]}), true);
        EXPECT_EQ(result.output_ids, wanted);
        EXPECT_TRUE(result.ended);
        EXPECT_EQ(result.verified_tokens, count);
        EXPECT_EQ(result.verify_steps, (count + width - 1) / width);
        EXPECT_EQ(random->generate(tiny.context, prompt, greedy(kNewTokens, {plain[i]}), true).output_ids, wanted);
        slots.insert((count - 1) % width);
    }
    EXPECT_EQ(std::ssize(slots), width) << "not every slot was the last one";
}

TEST_P(Decode, AnEndTokenInThePromptsOwnPassEndsTheText) {
    TinyDecoder tiny = decoder(spec_for(8));
    const auto generator = tiny.make_generator();
    const GoldenText text = texts()[0];
    const GenerateResult result = generator->generate(tiny.context, text.prompt, greedy(kNewTokens, {text.greedy[0]}), true);
    EXPECT_EQ(result.output_ids, Tokens{text.greedy[0]});
    EXPECT_TRUE(result.ended);
    EXPECT_EQ(result.verify_steps, 0);
    EXPECT_EQ(result.verified_tokens, 0);
}

// What a target keeps of a text, bit for bit.
std::vector<float> kept_state(const TinyDecoder& tiny, const TargetSession& session) {
    std::vector<float> kept;
    for (std::int64_t layer = 0; layer < tiny.target.layers; ++layer) {
        if (tiny.target.layer_kinds[static_cast<std::size_t>(layer)] != TargetLayerKind::kLinearAttention) continue;
        for (const Tensor& part : {session.recurrent_state(layer), session.conv_history(layer)}) {
            const std::vector<float> values = testing::values_of(tiny.context, part);
            kept.insert(kept.end(), values.begin(), values.end());
        }
    }
    return kept;
}

// The target's state after each step, by committed length.
std::map<std::int64_t, std::vector<float>> states(const TinyDecoder& tiny, Generator& generator, const Tokens& prompt, bool use_draft) {
    std::map<std::int64_t, std::vector<float>> by_length;
    GenerateSettings settings = greedy(kNewTokens);
    settings.on_step = [&](const VerifyStep& step) {
        const TargetSession& session = generator.target_session();
        EXPECT_EQ(session.length(), step.anchor_position + 1 + step.outcome.accepted);
        by_length[session.length()] = kept_state(tiny, session);
    };
    generator.generate(tiny.context, prompt, settings, use_draft);
    return by_length;
}

TEST_P(Decode, RejectedDraftsLeaveNoTraceInTheTargetsState) {
    const std::int64_t width = 8;
    TinyDecoder tiny = decoder(spec_for(width));
    const Tokens prompt = texts()[2].prompt;
    const auto plain_generator = tiny.make_generator();
    const Tokens plain = plain_generator->generate(tiny.context, prompt, greedy(kNewTokens), false).output_ids;
    const auto plain_states = states(tiny, *plain_generator, prompt, false);
    ASSERT_EQ(static_cast<std::int64_t>(plain_states.size()), kNewTokens - 1);
    for (std::int64_t wrong = 0; wrong < width; ++wrong) {
        SCOPED_TRACE(wrong);
        const auto generator = tiny.make_generator(
            scripted(tiny, joined(prompt, plain), [wrong](std::int64_t, std::int64_t draft) { return draft != wrong; }));
        EXPECT_EQ(generator->generate(tiny.context, prompt, greedy(kNewTokens), true).output_ids, plain);
        for (const auto& [length, state] : states(tiny, *generator, prompt, true)) {
            ASSERT_EQ(plain_states.count(length), 1U);
            EXPECT_TRUE(state == plain_states.at(length)) << "another state after " << length << " tokens";
        }
    }
}

// The same share of drafts is accepted in the fiftieth step as in the first: nothing drifts. The loop itself checks at each step that
// drafter and target have seen the same number of tokens.
TEST_P(Decode, AcceptanceDoesNotDecayOverFiftySteps) {
    const std::int64_t width = 8;
    const std::int64_t steps = 50;
    TinyDecoder tiny = decoder(spec_for(width), {.max_tokens = 600, .max_prompt = 128});
    const Tokens prompt = texts()[1].prompt;
    const Tokens plain = tiny.make_generator()->generate(tiny.context, prompt, greedy(1 + steps * width), false).output_ids;
    for (const std::int64_t right : {0, 3, 7}) {
        SCOPED_TRACE(right);
        const auto generator =
            tiny.make_generator(scripted(tiny, joined(prompt, plain), [right](std::int64_t, std::int64_t draft) { return draft < right; }));
        GenerateSettings settings = greedy(1 + steps * (right + 1));
        settings.on_step = [&](const VerifyStep& step) { EXPECT_EQ(step.outcome.accepted, right); };
        const GenerateResult result = generator->generate(tiny.context, prompt, settings, true);
        EXPECT_EQ(result.verify_steps, steps);
        EXPECT_EQ(result.acceptance_length(), static_cast<double>(right + 1));
        for (std::int64_t slot = 1; slot < width; ++slot) {
            EXPECT_EQ(result.accepted_by_slot[static_cast<std::size_t>(slot)], slot <= right ? steps : 0);
        }
        EXPECT_EQ(result.proposed_by_slot[0], 0);
    }
}

TEST_P(Decode, TokensBeyondTheLimitAreNeitherMadeNorCounted) {
    const std::int64_t width = 8;
    TinyDecoder tiny = decoder(spec_for(width));
    const Tokens prompt = texts()[3].prompt;
    const Tokens plain = tiny.make_generator()->generate(tiny.context, prompt, greedy(kNewTokens), false).output_ids;
    const auto generator = tiny.make_generator(scripted(tiny, joined(prompt, plain), [](std::int64_t, std::int64_t) { return true; }));
    for (const std::int64_t limit : {0, 1, 2, 3, 7, 8, 9, 10, 17, 18}) {
        SCOPED_TRACE(limit);
        const GenerateResult result = generator->generate(tiny.context, prompt, greedy(limit), true);
        EXPECT_EQ(result.output_ids, Tokens(plain.begin(), plain.begin() + limit));
        const std::int64_t verified = std::max<std::int64_t>(limit - 1, 0);
        EXPECT_EQ(result.verified_tokens, verified);
        EXPECT_EQ(result.verify_steps, (verified + width - 1) / width);
        EXPECT_FALSE(result.ended);
    }
}

TEST_P(Decode, CachesMayFillUpToTheLastToken) {
    for (const std::int64_t room : {1, 2, 9, 10, 30}) {
        SCOPED_TRACE(room);
        const Tokens prompt = texts()[1].prompt;
        const auto length = static_cast<std::int64_t>(prompt.size());
        TinyDecoder tiny = decoder(spec_for(8), {.max_tokens = length + room, .max_prompt = 10});
        const auto generator = tiny.make_generator();
        const Tokens plain = generator->generate(tiny.context, prompt, greedy(1000), false).output_ids;
        EXPECT_EQ(static_cast<std::int64_t>(plain.size()), room);
        EXPECT_EQ(generator->generate(tiny.context, prompt, greedy(1000), true).output_ids, plain);
    }
}

TEST_P(Decode, BeyondTheDraftersPositionsTheTargetGoesOnAlone) {
    DraftSpec spec = spec_for(8);
    const Tokens prompt = texts()[3].prompt;
    const auto length = std::ssize(prompt);
    for (const std::int64_t room : {0, 8, 20}) {
        SCOPED_TRACE(room);
        spec.max_positions = length + room;
        TinyDecoder tiny = decoder(spec);
        std::int64_t last_drafted = 0;
        GenerateSettings settings = greedy(kNewTokens);
        settings.on_step = [&](const VerifyStep& step) {
            if (!step.drafts.empty()) last_drafted = step.anchor_position;
        };
        const auto generator = tiny.make_generator();
        const Tokens plain = generator->generate(tiny.context, prompt, greedy(kNewTokens), false).output_ids;
        EXPECT_EQ(generator->generate(tiny.context, prompt, settings, true).output_ids, plain);
        EXPECT_LE(last_drafted, std::max<std::int64_t>(0, length + room - spec.block_size));
        EXPECT_EQ(last_drafted > 0, room >= spec.block_size);
    }
}

TEST_P(Decode, TheCallbackGetsEveryTokenOnceAndMayStop) {
    TinyDecoder tiny = decoder(spec_for(8));
    const auto generator = tiny.make_generator();
    const Tokens prompt = texts()[1].prompt;
    Tokens told;
    const auto all = [&](std::span<const std::int32_t> tokens) {
        told.insert(told.end(), tokens.begin(), tokens.end());
        return true;
    };
    const GenerateResult result = generator->generate(tiny.context, prompt, greedy(20), true, all);
    EXPECT_EQ(told, result.output_ids);
    told.clear();
    const auto first_five = [&](std::span<const std::int32_t> tokens) { return all(tokens) && told.size() < 5; };
    const Tokens stopped = generator->generate(tiny.context, prompt, greedy(20), true, first_five).output_ids;
    EXPECT_EQ(told, stopped);
    EXPECT_GE(stopped.size(), 5U);
    EXPECT_LT(stopped.size(), 5U + 8U);
}

TEST_P(Decode, SamplingRepeatsItselfAndWithOneCandidateIsGreedy) {
    TinyDecoder tiny = decoder(spec_for(8));
    const auto generator = tiny.make_generator();
    const Tokens prompt = texts()[1].prompt;
    GenerateSettings settings = greedy(32);
    const auto sampled = [&](const SamplingSettings& sampling) {
        settings.sampling = sampling;
        return generator->generate(tiny.context, prompt, settings, true).output_ids;
    };
    EXPECT_EQ(sampled({.temperature = 1, .top_k = 1, .seed = 3}), sampled({}));
    const Tokens once = sampled({.temperature = 3, .seed = 3});
    EXPECT_EQ(sampled({.temperature = 3, .seed = 3}), once);
    EXPECT_NE(sampled({.temperature = 3, .seed = 4}), once);
    EXPECT_NE(sampled({.temperature = 3, .seed = 3, .prompt = 1}), once);
}

TEST_P(Decode, RefusesPromptsThatCannotBeContinued) {
    TinyDecoder tiny = decoder({}, {.max_tokens = 20, .max_prompt = 20});
    const auto generator = tiny.make_generator();
    const auto attempt = [&](const Tokens& prompt, std::int64_t max_new_tokens = 4) {
        return [&tiny, &generator, prompt, max_new_tokens] { generator->generate(tiny.context, prompt, greedy(max_new_tokens), false); };
    };
    EXPECT_TRUE(testing::refuses(attempt({}), {"empty"}));
    EXPECT_TRUE(testing::refuses(attempt(Tokens(20, 1)), {"20 tokens", "19"}));
    EXPECT_TRUE(testing::refuses(attempt({1, 4096}), {"4096", "vocabulary"}));
    EXPECT_TRUE(testing::refuses(attempt({1, -1}), {"-1", "vocabulary"}));
    EXPECT_TRUE(testing::refuses(attempt({1}, -1), {"--max-new-tokens"}));
    attempt(Tokens(19, 1))();  // the largest that fits; and the generator still works
}

DFLASH_CASES_ON_EACH_DEVICE(Targets, Decode, ::testing::Values(TinyTarget{"tiny-qwen3", "Qwen3"}, TinyTarget{"tiny-qwen3.5", "Hybrid"}));

}  // namespace
}  // namespace dflash
