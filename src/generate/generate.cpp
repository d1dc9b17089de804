// SPDX-License-Identifier: MIT
#include "generate/generate.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "base/check.h"
#include "base/log.h"

namespace dflash {
namespace {

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

// A step feeds the anchor and the drafts.
std::int64_t step_rows(const DraftSpec* draft, const GeneratorSettings& settings) {
    return draft != nullptr ? draft->block_size + draft->alignment_shift : settings.block_size;
}

TargetSessionSettings target_settings(const DraftSpec* draft, const GeneratorSettings& settings) {
    TargetSessionSettings session;
    session.max_tokens = settings.max_tokens;
    session.max_prompt = settings.max_prompt;
    session.device = settings.device;
    session.record = settings.record;
    session.step_rows = step_rows(draft, settings);
    if (draft != nullptr) session.taps = draft->taps;
    return session;
}

constexpr std::int64_t kAppendChunk = 1024;  // prompt rows that pass through the drafter at once: bounds its scratch

DraftSessionSettings draft_settings(const DraftSpec& draft, const GeneratorSettings& settings) {
    return {.max_tokens = settings.max_tokens,
            .max_append = std::max(step_rows(&draft, settings), std::min(settings.max_prompt, kAppendChunk)),
            .device = settings.device,
            .record = settings.record};
}

template <typename T>
void append(std::vector<T>& to, std::vector<T> from) {
    std::move(from.begin(), from.end(), std::back_inserter(to));
}

}  // namespace

std::vector<BufferSpec> generator_buffers(const TargetConfig& target, const DraftSpec* draft, const GeneratorSettings& settings,
                                          Lifetime lifetime, Lifetime persistent) {
    std::vector<BufferSpec> buffers = target_session_buffers(target, target_settings(draft, settings), lifetime, persistent);
    if (draft != nullptr) append(buffers, draft_session_buffers(*draft, draft_settings(*draft, settings), lifetime, persistent));
    append(buffers, LogitReader::buffers(settings.device, step_rows(draft, settings), lifetime));
    return buffers;
}

std::vector<LinearShape> generator_linears(const TargetConfig& target, const DraftSpec* draft, const GeneratorSettings& settings) {
    std::vector<LinearShape> linears = target_session_linears(target, target_settings(draft, settings));
    if (draft != nullptr) append(linears, draft_session_linears(*draft, draft_settings(*draft, settings)));
    return linears;
}

std::size_t generator_workspace_bytes(const TargetConfig& target, const DraftSpec* draft, const GeneratorSettings& settings) {
    return std::max(linear_workspace_bytes(settings.device, generator_linears(target, draft, settings)),
                    target_session_workspace_bytes(target, target_settings(draft, settings)));
}

struct Generator::Impl {
    Impl(const TargetConfig& target_config, const TargetWeights& weights, const DraftSpec* spec, std::unique_ptr<Proposer> drafter,
         const GeneratorSettings& generator_settings, const Arena& arena)
        : settings(generator_settings),
          vocabulary(target_config.vocabulary),
          block_size(spec != nullptr ? spec->block_size : generator_settings.block_size),
          target(target_config, weights, target_settings(spec, generator_settings), arena),
          proposer(std::move(drafter)),
          logits(generator_settings.device, arena) {
        drafts.reserve(static_cast<std::size_t>(step_rows(spec, settings)));
    }

    void check_prompt(std::span<const std::int32_t> prompt) const;
    bool draft_fits(std::int64_t length) const;
    void prefill(const Context& context, std::span<const std::int32_t> prompt);
    void propose(const Context& context, Verifier& verifier, std::int32_t anchor, std::int64_t limit);
    VerifyOutcome step(const Context& context, Verifier& verifier, std::int32_t anchor);
    void count(const VerifyOutcome& outcome, GenerateResult& result) const;

    GeneratorSettings settings;
    std::int64_t vocabulary;
    std::int64_t block_size;
    TargetSession target;
    std::unique_ptr<Proposer> proposer;  // may be null
    LogitReader logits;
    bool drafting = false;             // in the current text, so far
    std::vector<std::int32_t> drafts;  // of the current step
    std::vector<std::int32_t> rows;    // its anchor and drafts
};

void Generator::Impl::check_prompt(std::span<const std::int32_t> prompt) const {
    const auto tokens = static_cast<std::int64_t>(prompt.size());
    if (tokens == 0) throw_bad_input("the prompt is empty: at least one token is needed to continue from");
    if (tokens >= settings.max_tokens) {
        throw_bad_input("the prompt has {} tokens: at most {} fit, with room for one more", tokens, settings.max_tokens - 1);
    }
    for (const std::int32_t id : prompt) {
        if (id < 0 || id >= vocabulary) throw_bad_input("prompt token {} is outside the target's vocabulary of {}", id, vocabulary);
    }
}

// All slots of a block at this context length lie within the positions that the drafter was made for.
bool Generator::Impl::draft_fits(std::int64_t length) const { return length + block_size <= proposer->max_positions(); }

void Generator::Impl::prefill(const Context& context, std::span<const std::int32_t> prompt) {
    target.prefill(context, prompt);
    if (drafting && !draft_fits(target.length())) {
        log_warning("[generate] the prompt's {} tokens reach the drafter's {} positions: decoding without drafts", prompt.size(),
                    proposer->max_positions());
        drafting = false;
    }
    if (!drafting) return;
    proposer->reset();
    proposer->append_context(context, target.taps());
}

// Fills `drafts` with at most `limit` tokens for the positions after the anchor's.
void Generator::Impl::propose(const Context& context, Verifier& verifier, std::int32_t anchor, std::int64_t limit) {
    drafts.clear();
    drafting = drafting && draft_fits(target.length());
    if (!drafting || limit <= 0) return;
    DFLASH_CHECK(proposer->length() == target.length(), "the drafter has seen {} tokens, the target {}", proposer->length(),
                 target.length());
    drafts.resize(static_cast<std::size_t>(std::min(limit, proposer->max_drafts())));
    verifier.draft(logits.read(context, proposer->propose(context, anchor), verifier.greedy()), target.length() + 1, drafts);
}

// Verifies `drafts` after the anchor and keeps what the target agrees with, in both caches.
VerifyOutcome Generator::Impl::step(const Context& context, Verifier& verifier, std::int32_t anchor) {
    rows.assign(1, anchor);
    rows.insert(rows.end(), drafts.begin(), drafts.end());
    target.step(context, rows);
    const VerifyOutcome outcome = verifier.verify(logits.read(context, target.logits(), verifier.greedy()), target.length() + 1, drafts);
    // The bonus token has no features yet: it becomes the next anchor.
    const std::int64_t kept = 1 + outcome.accepted;
    if (drafting) proposer->append_context(context, target.taps().slice_rows(0, kept));
    target.commit(context, kept);
    return outcome;
}

void Generator::Impl::count(const VerifyOutcome& outcome, GenerateResult& result) const {
    ++result.verify_steps;
    result.verified_tokens += outcome.committed();
    const bool ended_by_draft = outcome.ended && outcome.bonus < 0;
    const std::int64_t offered = ended_by_draft ? outcome.accepted : static_cast<std::int64_t>(drafts.size());
    for (std::int64_t i = 0; i < offered; ++i) {
        const auto slot = static_cast<std::size_t>(proposer->first_slot() + i);
        ++result.proposed_by_slot[slot];
        if (i < outcome.accepted) ++result.accepted_by_slot[slot];
    }
}

Generator::Generator(const TargetConfig& target, const TargetWeights& weights, const DraftModel* draft, const GeneratorSettings& settings,
                     const Arena& arena)
    : impl_(std::make_unique<Impl>(target, weights, draft != nullptr ? &draft->spec : nullptr,
                                   draft != nullptr ? make_draft_proposer(*draft, draft_settings(draft->spec, settings), arena) : nullptr,
                                   settings, arena)) {}

Generator::Generator(const TargetConfig& target, const TargetWeights& weights, const DraftSpec& spec, std::unique_ptr<Proposer> proposer,
                     const GeneratorSettings& settings, const Arena& arena)
    : impl_(std::make_unique<Impl>(target, weights, &spec, std::move(proposer), settings, arena)) {}

Generator::~Generator() = default;

const TargetSession& Generator::target_session() const { return impl_->target; }

GenerateResult Generator::generate(const Context& context, std::span<const std::int32_t> prompt, const GenerateSettings& settings,
                                   bool use_draft, const TokenCallback& on_tokens) {
    Impl& impl = *impl_;
    impl.check_prompt(prompt);
    if (settings.max_new_tokens < 0) throw_bad_input("--max-new-tokens is {}: give 0 or more", settings.max_new_tokens);
    Verifier verifier(settings.sampling, settings.end_tokens);
    const std::int64_t limit = std::min(settings.max_new_tokens, impl.settings.max_tokens - static_cast<std::int64_t>(prompt.size()));

    GenerateResult result;
    result.accepted_by_slot.assign(static_cast<std::size_t>(impl.block_size), 0);
    result.proposed_by_slot.assign(static_cast<std::size_t>(impl.block_size), 0);
    if (limit == 0) return result;
    result.output_ids.reserve(static_cast<std::size_t>(limit));
    const auto emitted = [&] { return static_cast<std::int64_t>(result.output_ids.size()); };
    const auto tell = [&](std::int64_t first) {
        return !on_tokens || on_tokens(std::span(result.output_ids).subspan(static_cast<std::size_t>(first)));
    };

    const Clock::time_point start = Clock::now();
    impl.drafting = use_draft && impl.proposer != nullptr;
    impl.prefill(context, prompt);
    const LogitRows logits = impl.logits.read(context, impl.target.logits(), verifier.greedy());
    result.output_ids.push_back(verifier.choose(logits, 0, impl.target.length()));
    result.ended = verifier.is_end(result.output_ids.back());
    result.prefill_ms = ms_since(start);

    bool wanted = tell(0);
    const Clock::time_point decode_start = Clock::now();
    while (wanted && !result.ended && emitted() < limit) {
        const std::int32_t anchor = result.output_ids.back();
        const std::int64_t anchor_position = impl.target.length();
        // A step commits one token more than it keeps drafts: near the limit it is shorter, never cut afterwards.
        impl.propose(context, verifier, anchor, limit - emitted() - 1);
        const VerifyOutcome outcome = impl.step(context, verifier, anchor);
        impl.count(outcome, result);
        if (settings.on_step) settings.on_step({anchor_position, anchor, impl.drafts, outcome});
        const std::int64_t first = emitted();
        result.output_ids.insert(result.output_ids.end(), impl.drafts.begin(), impl.drafts.begin() + outcome.accepted);
        if (outcome.bonus >= 0) result.output_ids.push_back(outcome.bonus);
        result.ended = outcome.ended;
        wanted = tell(first);
    }
    result.decode_ms = ms_since(decode_start);
    return result;
}

}  // namespace dflash
