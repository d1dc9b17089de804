// SPDX-License-Identifier: MIT
// Which tokens one verify step commits. Greedy: drafts are kept while they are what the target itself would emit. Sampled: draft d is
// kept with probability min(1, p(d) / q(d)), where p and q are the target's and the drafter's adjusted distributions; the first one
// refused is replaced by a draw from max(0, p - q), so that the text follows p whatever q is (Leviathan et al. 2023; Chen et al. 2023).
// A kept end token ends the text: nothing after it counts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generate/logit_reader.h"
#include "generate/sampler.h"

namespace dflash {

struct VerifyOutcome {
    std::int64_t accepted = 0;  // drafts kept
    std::int32_t bonus = -1;    // the target's own token after them; -1 when a kept draft ended the text
    bool ended = false;         // the last committed token is an end token
    std::int64_t committed() const { return accepted + (bonus >= 0 ? 1 : 0); }
};

// The choices of one text. Positions are those of the chosen tokens, from 0 at the prompt's first.
class Verifier {
public:
    Verifier(const SamplingSettings& sampling, std::span<const std::int32_t> end_tokens);

    bool is_end(std::int32_t token) const;
    bool greedy() const { return sampling_.greedy(); }
    // The target's own token from one row of its logits.
    std::int32_t choose(const LogitRows& logits, std::int64_t row, std::int64_t position);
    // drafts[i] =: the drafter's token at position + i, from row i of its logits (at least drafts.size() rows).
    void draft(const LogitRows& draft_logits, std::int64_t position, std::span<std::int32_t> drafts);
    // `target_logits` (drafts + 1 rows): row i decides the token at position + i. The drafts are those of the last draft() call.
    VerifyOutcome verify(const LogitRows& target_logits, std::int64_t position, std::span<const std::int32_t> drafts);

private:
    bool accept(std::span<const float> logits, std::int64_t position, std::int32_t draft, std::int64_t slot);
    std::int32_t replace(std::int64_t position, std::int64_t slot);
    std::span<double> draft_probabilities(std::int64_t slot);

    SamplingSettings sampling_;
    std::span<const std::int32_t> end_tokens_;
    Sampler sampler_;
    std::vector<double> target_;  // (V) distribution of the row in question
    std::vector<double> draft_;   // (drafts, V) distributions that the drafts were drawn from
};

}  // namespace dflash
