// SPDX-License-Identifier: MIT
// From one row of logits to one token: greedy, or drawn from the distribution that temperature, top-k and top-p (in this order) leave.
// Probabilities are doubles. Random numbers are counter-based and keyed by (seed, prompt, position, purpose): a draft's noise and the
// noise of its acceptance or replacement are never the same numbers, and a run repeats whatever was decoded before. Host memory only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dflash {

struct SamplingSettings {
    double temperature = 0;  // 0: greedy
    std::int64_t top_k = 0;  // 0: all
    double top_p = 1;
    std::uint64_t seed = 0;
    std::uint64_t prompt = 0;  // number of the prompt within a run: each has its own random numbers
    bool greedy() const { return temperature == 0; }
};
// Throws Error(kBadInput) naming the flag whose value makes no sense.
void check_sampling(const SamplingSettings& settings);

// Index of the largest value, the first of equals. Throws Error(kFailed) when a value is NaN: `what` names the row.
std::int32_t argmax(std::span<const float> logits, const char* what);
[[noreturn]] void throw_nan_logits(const char* what);

// What a random number is for; part of its key.
enum class Draw : std::uint64_t { kDraft = 1, kAccept = 2, kToken = 3 };
// Uniform in [0, 1).
double uniform_draw(const SamplingSettings& settings, std::int64_t position, Draw purpose);

// Reused scratch for distributions over one vocabulary.
class Sampler {
public:
    // probabilities (V) =: the adjusted distribution of `logits` (V). Needs temperature > 0.
    void distribution(std::span<const float> logits, const SamplingSettings& settings, std::span<double> probabilities, const char* what);

private:
    void keep_likeliest(const SamplingSettings& settings, std::span<double> probabilities);
    std::vector<std::int32_t> order_;  // (V) tokens, the likeliest first
};

// The token at `uniform` of the cumulated weights; they need not sum to 1, at least one must be positive.
std::int32_t draw_token(std::span<const double> weights, double uniform);

}  // namespace dflash
