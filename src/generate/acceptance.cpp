// SPDX-License-Identifier: MIT
#include "generate/acceptance.h"

#include <algorithm>

namespace dflash {
namespace {

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

void add_slots(std::vector<std::int64_t>& to, const std::vector<std::int64_t>& from) {
    if (to.size() < from.size()) to.resize(from.size(), 0);
    for (std::size_t k = 0; k < from.size(); ++k) to[k] += from[k];
}

}  // namespace

std::int64_t count_differing(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
    const std::size_t common = std::min(a.size(), b.size());
    auto differing = static_cast<std::int64_t>(std::max(a.size(), b.size()) - common);
    for (std::size_t i = 0; i < common; ++i) differing += a[i] != b[i] ? 1 : 0;
    return differing;
}

void AcceptanceReport::add(const GenerateResult& drafted) {
    ++prompts;
    new_tokens += static_cast<std::int64_t>(drafted.output_ids.size());
    verify_steps += drafted.verify_steps;
    verified_tokens += drafted.verified_tokens;
    add_slots(accepted_by_slot, drafted.accepted_by_slot);
    add_slots(proposed_by_slot, drafted.proposed_by_slot);
    decode_ms += drafted.decode_ms;
    if (drafted.verify_steps == 0) return;
    ++prompts_with_steps;
    prompt_mean_sum += drafted.acceptance_length();
}

void AcceptanceReport::compare(const GenerateResult& drafted, const GenerateResult& plain) {
    ++compared_prompts;
    plain_tokens += plain.verified_tokens;
    plain_ms += plain.decode_ms;
    const std::int64_t differing = count_differing(drafted.output_ids, plain.output_ids);
    differing_tokens += differing;
    differing_prompts += differing > 0 ? 1 : 0;
}

double AcceptanceReport::acceptance_length() const {
    return ratio(static_cast<double>(verified_tokens), static_cast<double>(verify_steps));
}
double AcceptanceReport::prompt_mean() const { return ratio(prompt_mean_sum, static_cast<double>(prompts_with_steps)); }
double AcceptanceReport::tokens_per_second() const { return ratio(1e3 * static_cast<double>(verified_tokens), decode_ms); }
double AcceptanceReport::plain_tokens_per_second() const { return ratio(1e3 * static_cast<double>(plain_tokens), plain_ms); }
double AcceptanceReport::speed_up() const { return ratio(tokens_per_second(), plain_tokens_per_second()); }

}  // namespace dflash
