// SPDX-License-Identifier: MIT
// The arithmetic that one optimizer step needs: matrix products and attention, a multiplication and an addition counted as two. Products of
// the frozen embedding, head and features have no weight gradient; the head runs on labelled slots alone; norms and the like are left out.
#pragma once

#include <cstdint>

#include "draft/anchors.h"
#include "draft/draft_spec.h"

namespace dflash {

struct StepFlops {
    double forward = 0, loss = 0, backward = 0;
    double total() const { return forward + loss + backward; }
};

// For a micro-batch of `tokens` rows and these anchors. kl adds the target's product of the same rows (`with_teacher`).
StepFlops count_step_flops(const DraftSpec& spec, std::int64_t tokens, const AnchorSet& anchors, bool with_teacher = false);

}  // namespace dflash
