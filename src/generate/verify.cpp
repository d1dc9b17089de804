// SPDX-License-Identifier: MIT
#include "generate/verify.h"

#include <algorithm>

#include "base/check.h"

namespace dflash {
namespace {

constexpr const char* kTarget = "target";
constexpr const char* kDrafter = "drafter";

}  // namespace

Verifier::Verifier(const SamplingSettings& sampling, std::span<const std::int32_t> end_tokens)
    : sampling_(sampling), end_tokens_(end_tokens) {
    check_sampling(sampling);
}

bool Verifier::is_end(std::int32_t token) const { return std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end(); }

std::int32_t Verifier::choose(const LogitRows& logits, std::int64_t row, std::int64_t position) {
    if (greedy()) return logits.best_token(row, kTarget);
    target_.resize(logits.row(row).size());
    sampler_.distribution(logits.row(row), sampling_, target_, kTarget);
    return draw_token(target_, uniform_draw(sampling_, position, Draw::kToken));
}

void Verifier::draft(const LogitRows& draft_logits, std::int64_t position, std::span<std::int32_t> drafts) {
    const auto count = static_cast<std::int64_t>(drafts.size());
    DFLASH_CHECK(draft_logits.rows() >= count, "{} drafts from {} rows of logits", count, draft_logits.rows());
    if (!greedy()) {
        const auto width = static_cast<std::size_t>(draft_logits.values.row_elements());
        target_.resize(width);
        draft_.resize(drafts.size() * width);
    }
    for (std::int64_t slot = 0; slot < count; ++slot) {
        std::int32_t& token = drafts[static_cast<std::size_t>(slot)];
        if (greedy()) {
            token = draft_logits.best_token(slot, kDrafter);
            continue;
        }
        sampler_.distribution(draft_logits.row(slot), sampling_, draft_probabilities(slot), kDrafter);
        token = draw_token(draft_probabilities(slot), uniform_draw(sampling_, position + slot, Draw::kDraft));
    }
}

VerifyOutcome Verifier::verify(const LogitRows& target_logits, std::int64_t position, std::span<const std::int32_t> drafts) {
    const auto count = static_cast<std::int64_t>(drafts.size());
    DFLASH_CHECK(target_logits.rows() == count + 1, "{} drafts need {} rows of the target's logits, not {}", count, count + 1,
                 target_logits.rows());
    VerifyOutcome outcome;
    for (; outcome.accepted < count; ++outcome.accepted) {
        const std::int64_t slot = outcome.accepted;
        const std::int32_t token = drafts[static_cast<std::size_t>(slot)];
        if (greedy()) {
            outcome.bonus = target_logits.best_token(slot, kTarget);
            if (outcome.bonus != token) break;
            outcome.bonus = -1;
        } else if (!accept(target_logits.row(slot), position + slot, token, slot)) {
            outcome.bonus = replace(position + slot, slot);
            break;
        }
        if (is_end(token)) {
            ++outcome.accepted;
            outcome.ended = true;
            return outcome;
        }
    }
    if (outcome.bonus < 0) outcome.bonus = choose(target_logits, count, position + count);
    outcome.ended = is_end(outcome.bonus);
    return outcome;
}

// Leaves the target's distribution at the slot in target_.
bool Verifier::accept(std::span<const float> logits, std::int64_t position, std::int32_t draft, std::int64_t slot) {
    DFLASH_CHECK(target_.size() == logits.size() && draft_.size() >= static_cast<std::size_t>(slot + 1) * logits.size(),
                 "draft {} was not drawn by this verifier, or from another vocabulary", slot);
    sampler_.distribution(logits, sampling_, target_, kTarget);
    const auto token = static_cast<std::size_t>(draft);
    return uniform_draw(sampling_, position, Draw::kAccept) * draft_probabilities(slot)[token] < target_[token];
}

// A draw from max(0, p - q); target_ holds p. Where rounding leaves nothing of it, p and q are the same.
std::int32_t Verifier::replace(std::int64_t position, std::int64_t slot) {
    const std::span<double> residual = draft_probabilities(slot);
    double largest = 0;
    for (std::size_t i = 0; i < residual.size(); ++i) {
        residual[i] = std::max(0.0, target_[i] - residual[i]);
        largest = std::max(largest, residual[i]);
    }
    const double uniform = uniform_draw(sampling_, position, Draw::kToken);
    return largest > 0 ? draw_token(residual, uniform) : draw_token(target_, uniform);
}

std::span<double> Verifier::draft_probabilities(std::int64_t slot) {
    const std::size_t width = target_.size();
    return {draft_.data() + static_cast<std::size_t>(slot) * width, width};
}

}  // namespace dflash
