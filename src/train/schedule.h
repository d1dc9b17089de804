// SPDX-License-Identifier: MIT
// The learning rate: rises in a straight line over the warm-up, then falls as half a cosine to 0 (Loshchilov & Hutter, "SGDR", 2017).
// A pure function of the step, so that a resumed run needs no state.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace dflash {

struct Schedule {
    double peak = 6e-4;
    std::int64_t warmup_steps = 0;
    std::int64_t total_steps = 1;

    // Of step 1 .. total_steps. The first step's rate is above 0, the last warm-up step's is the peak, the step after the last has 0.
    double learning_rate(std::int64_t step) const {
        if (step <= warmup_steps) return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
        const auto done = static_cast<double>(step - warmup_steps - 1);
        const auto span = static_cast<double>(std::max<std::int64_t>(total_steps - warmup_steps, 1));
        return peak * 0.5 * (1.0 + std::cos(3.14159265358979323846 * std::min(done / span, 1.0)));
    }
};

inline Schedule make_schedule(double peak, double warmup_ratio, std::int64_t total_steps) {
    return {peak, static_cast<std::int64_t>(std::ceil(warmup_ratio * static_cast<double>(total_steps))), total_steps};
}

}  // namespace dflash
