// SPDX-License-Identifier: MIT
// What decoding with a drafter gained over a set of prompts. Acceptance length is pooled: tokens committed by verify steps / verify steps,
// over all prompts; the mean of the prompts' own values stands beside it.
#pragma once

#include <cstdint>
#include <vector>

#include "generate/generate.h"

namespace dflash {

struct AcceptanceReport {
    std::int64_t prompts = 0;
    std::int64_t new_tokens = 0;
    std::int64_t verify_steps = 0, verified_tokens = 0;
    std::vector<std::int64_t> accepted_by_slot, proposed_by_slot;  // (W), see GenerateResult
    double prompt_mean_sum = 0;                                    // of the acceptance lengths of prompts_with_steps
    std::int64_t prompts_with_steps = 0;
    double decode_ms = 0;  // of the verify steps

    // The same prompts decoded plainly.
    std::int64_t compared_prompts = 0, plain_tokens = 0, differing_tokens = 0, differing_prompts = 0;
    double plain_ms = 0;

    void add(const GenerateResult& drafted);
    void compare(const GenerateResult& drafted, const GenerateResult& plain);

    // 0 where there was no step.
    double acceptance_length() const;
    double prompt_mean() const;
    // Tokens of verify steps a second, without the prompts' own time; 0 where nothing was measured.
    double tokens_per_second() const;
    double plain_tokens_per_second() const;
    double speed_up() const;
};

// Positions at which two texts differ, the surplus of the longer one included.
std::int64_t count_differing(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b);

}  // namespace dflash
