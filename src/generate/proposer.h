// SPDX-License-Identifier: MIT
// What the draft-verify loop needs of a drafter: it grows by the features of committed tokens and proposes the tokens after an anchor.
// The DFlash drafter is one; tests script others. Generators own theirs.
#pragma once

#include <cstdint>
#include <memory>

#include "draft/draft_session.h"
#include "kernels/context.h"
#include "tensor/tensor.h"

namespace dflash {

class Proposer {
public:
    virtual ~Proposer() = default;
    // A new text starts.
    virtual void reset() = 0;
    // Features of the next committed tokens, f32 (n, K*C); n may be a whole prompt.
    virtual void append_context(const Context& context, const Tensor& taps) = 0;
    // Logits f32 (max_drafts(), V) for the positions length() + 1 .. after `anchor`, which stands at position length().
    virtual Tensor propose(const Context& context, std::int32_t anchor) = 0;
    virtual std::int64_t length() const = 0;         // tokens appended
    virtual std::int64_t max_drafts() const = 0;     // a step
    virtual std::int64_t first_slot() const = 0;     // the block slot that the first draft comes from
    virtual std::int64_t max_positions() const = 0;  // no position of a block may reach it
};

std::unique_ptr<Proposer> make_draft_proposer(const DraftModel& model, const DraftSessionSettings& settings, const Arena& arena);

}  // namespace dflash
