// SPDX-License-Identifier: MIT
// The draft-verify loop. Greedy output equals the target's own greedy output, token for token; sampled output follows the target's
// distribution (speculative sampling: Leviathan et al. 2023, Chen et al. 2023). Acceptance length = tokens committed by verify steps / verify
// steps; the prefill's token, tokens after an end token and beyond the limit do not count.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "draft/draft_model.h"
#include "generate/proposer.h"
#include "generate/sampler.h"
#include "generate/verify.h"
#include "target/target_session.h"

namespace dflash {

// One verify step, as it is told to GenerateSettings::on_step. The spans are valid during the call.
struct VerifyStep {
    std::int64_t anchor_position = 0;  // committed tokens before the anchor
    std::int32_t anchor = 0;
    std::span<const std::int32_t> drafts;  // for positions anchor_position + 1 ..; none in a plain step
    VerifyOutcome outcome;
};

struct GenerateSettings {
    std::int64_t max_new_tokens = 256;
    SamplingSettings sampling;
    std::vector<std::int32_t> end_tokens;
    std::function<void(const VerifyStep&)> on_step;  // optional, for tests and measurements
};

struct GenerateResult {
    std::vector<std::int32_t> output_ids;  // an end token is included when it ended the text
    std::int64_t verify_steps = 0;
    std::int64_t verified_tokens = 0;            // tokens committed by verify steps that count
    std::vector<std::int64_t> accepted_by_slot;  // (W) [k]: verify steps in which the draft of slot k was accepted
    std::vector<std::int64_t> proposed_by_slot;  // (W) [k]: verify steps in which it was offered, and not beyond an end token
    double prefill_ms = 0, decode_ms = 0;
    bool ended = false;  // by an end token
    double acceptance_length() const {
        return verify_steps == 0 ? 0.0 : static_cast<double>(verified_tokens) / static_cast<double>(verify_steps);
    }
};

// One sequence at a time over planned memory. Without a drafter every step commits one token (same row tile as with one).
struct GeneratorSettings {
    std::int64_t max_tokens = 0;   // prompt + new tokens
    std::int64_t max_prompt = 0;   // prompt rows that pass through the target at once; longer prompts go in pieces
    std::int64_t block_size = 16;  // the verify step's rows where there is no drafter to say so
    Device device = {};
    bool record = false;  // on a GPU: steps become graphs, which are quicker to launch and take driver memory beside the plan
};
// All buffers of both sessions: the rotary tables, which are filled once, live `persistent`, the others `lifetime`. And the workspace they
// need.
std::vector<BufferSpec> generator_buffers(const TargetConfig& target, const DraftSpec* draft, const GeneratorSettings& settings,
                                          Lifetime lifetime, Lifetime persistent);
std::vector<LinearShape> generator_linears(const TargetConfig& target, const DraftSpec* draft, const GeneratorSettings& settings);
std::size_t generator_workspace_bytes(const TargetConfig& target, const DraftSpec* draft, const GeneratorSettings& settings);

// Called with each batch of committed tokens; return false to stop.
using TokenCallback = std::function<bool(std::span<const std::int32_t>)>;

class Generator {
public:
    // `draft` may be null. The models' tensors and the arena must outlive the generator.
    Generator(const TargetConfig& target, const TargetWeights& weights, const DraftModel* draft, const GeneratorSettings& settings,
              const Arena& arena);
    // The same with another proposer in the place of the drafter that `spec` describes.
    Generator(const TargetConfig& target, const TargetWeights& weights, const DraftSpec& spec, std::unique_ptr<Proposer> proposer,
              const GeneratorSettings& settings, const Arena& arena);
    ~Generator();
    // Throws Error(kBadInput) when the prompt is empty, holds an unknown token or does not fit. Fewer than max_new_tokens come out when
    // max_tokens is reached. Positions beyond the drafter's own limit are decoded plainly.
    GenerateResult generate(const Context& context, std::span<const std::int32_t> prompt, const GenerateSettings& settings, bool use_draft,
                            const TokenCallback& on_tokens = {});
    // Test hook: the target's caches and states after the last call.
    const TargetSession& target_session() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace dflash
