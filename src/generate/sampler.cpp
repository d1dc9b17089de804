// SPDX-License-Identifier: MIT
#include "generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/rng.h"

namespace dflash {

void check_sampling(const SamplingSettings& settings) {
    if (!(settings.temperature >= 0) || std::isinf(settings.temperature)) {
        throw_bad_input("--temperature is {}: give 0 (greedy) or a positive number", settings.temperature);
    }
    if (settings.top_k < 0) throw_bad_input("--top-k is {}: give 0 (all tokens) or a positive number", settings.top_k);
    if (!(settings.top_p > 0 && settings.top_p <= 1)) {
        throw_bad_input("--top-p is {}: give a number above 0 and at most 1", settings.top_p);
    }
}

void throw_nan_logits(const char* what) { throw_failed("the {}'s logits are not numbers: its weights are damaged", what); }

std::int32_t argmax(std::span<const float> logits, const char* what) {
    float best = -std::numeric_limits<float>::infinity();
    std::size_t at = 0;
    bool has_nan = false;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        has_nan |= logits[i] != logits[i];
        if (logits[i] > best) {
            best = logits[i];
            at = i;
        }
    }
    if (logits.empty() || has_nan) throw_nan_logits(what);
    return static_cast<std::int32_t>(at);
}

double uniform_draw(const SamplingSettings& settings, std::int64_t position, Draw purpose) {
    const std::uint64_t stream = mix_stream(settings.prompt, static_cast<std::uint64_t>(position), static_cast<std::uint64_t>(purpose));
    return Philox(settings.seed, stream).next_double();
}

void Sampler::distribution(std::span<const float> logits, const SamplingSettings& settings, std::span<double> probabilities,
                           const char* what) {
    DFLASH_CHECK(settings.temperature > 0 && logits.size() == probabilities.size(), "no distribution of {} logits at temperature {}",
                 logits.size(), settings.temperature);
    const double largest = logits[static_cast<std::size_t>(argmax(logits, what))];
    for (std::size_t i = 0; i < logits.size(); ++i) {
        probabilities[i] = std::exp((static_cast<double>(logits[i]) - largest) / settings.temperature);
    }
    const bool cut_k = settings.top_k > 0 && settings.top_k < static_cast<std::int64_t>(logits.size());
    if (cut_k || settings.top_p < 1) keep_likeliest(settings, probabilities);
    const double total = std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
    for (double& p : probabilities) p /= total;
}

// Zeroes all but the top-k weights, then all but the shortest run of the likeliest whose share reaches top-p.
void Sampler::keep_likeliest(const SamplingSettings& settings, std::span<double> probabilities) {
    order_.resize(probabilities.size());
    std::iota(order_.begin(), order_.end(), 0);
    const auto weight = [&](std::int32_t token) { return probabilities[static_cast<std::size_t>(token)]; };
    const auto likelier = [&](std::int32_t a, std::int32_t b) { return weight(a) != weight(b) ? weight(a) > weight(b) : a < b; };
    auto end = order_.end();
    if (settings.top_k > 0 && settings.top_k < static_cast<std::int64_t>(order_.size())) {
        end = order_.begin() + settings.top_k;
        std::nth_element(order_.begin(), end, order_.end(), likelier);
    }
    if (settings.top_p < 1) {
        std::sort(order_.begin(), end, likelier);
        double total = 0;
        for (auto it = order_.begin(); it != end; ++it) total += weight(*it);
        double kept = 0;
        auto it = order_.begin();
        while (it != end && kept < settings.top_p * total) kept += weight(*it++);
        end = it;
    }
    std::for_each(end, order_.end(), [&](std::int32_t token) { probabilities[static_cast<std::size_t>(token)] = 0; });
}

std::int32_t draw_token(std::span<const double> weights, double uniform) {
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    DFLASH_CHECK(total > 0, "nothing to draw from: {} weights sum to {}", weights.size(), total);
    const double wanted = uniform * total;
    double cumulated = 0;
    std::size_t last_possible = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
        if (!(weights[i] > 0)) continue;
        cumulated += weights[i];
        last_possible = i;
        if (wanted < cumulated) break;
    }
    return static_cast<std::int32_t>(last_possible);  // rounding of the sum never picks an impossible token
}

}  // namespace dflash
