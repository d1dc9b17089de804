// SPDX-License-Identifier: MIT
#include "model/rope_table.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "base/bf16.h"

namespace dflash {

namespace {

// Slow frequencies are stretched by `factor`, fast ones kept, and those between blended (Llama 3.1).
double llama3_frequency(double frequency, const RopeScalingLlama3& scaling) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    const auto original = static_cast<double>(scaling.original_max_positions);
    if (wavelength < original / scaling.high_freq_factor) return frequency;
    if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
    const double blend = (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
    return frequency * ((1 - blend) / scaling.factor + blend);
}

}  // namespace

RopeFrequencies rope_frequencies(const TargetConfig& config) {
    return {config.rope_theta, config.rotary_dims, config.rope_scaling, config.bf16_rope_frequencies};
}

void fill_rope_table(const RopeFrequencies& frequencies, const Tensor& cos, const Tensor& sin) {
    const std::int64_t rotary_dims = frequencies.rotary_dims;
    const std::int64_t half = rotary_dims / 2;
    const std::int64_t positions = cos.rows();
    DFLASH_CHECK(rotary_dims > 0 && rotary_dims % 2 == 0, "{} rotary dimensions, expected an even number", rotary_dims);
    DFLASH_CHECK(cos.shape == (Shape{positions, half}) && sin.shape == cos.shape, "rope tables are {} and {}, expected (positions, {})",
                 cos.shape.to_string(), sin.shape.to_string(), half);
    std::vector<float> inv_freq(static_cast<std::size_t>(half));
    for (std::int64_t i = 0; i < half; ++i) {
        const double plain = std::pow(frequencies.theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dims));
        const auto scaled = static_cast<float>(frequencies.scaling.enabled ? llama3_frequency(plain, frequencies.scaling) : plain);
        inv_freq[static_cast<std::size_t>(i)] = frequencies.round_to_bf16 ? bf16_to_float(float_to_bf16(scaled)) : scaled;
    }
    float* c = cos.f32();
    float* s = sin.f32();
#pragma omp parallel for schedule(static)
    for (std::int64_t p = 0; p < positions; ++p) {
        for (std::int64_t i = 0; i < half; ++i) {
            const float angle = static_cast<float>(p) * inv_freq[static_cast<std::size_t>(i)];
            c[p * half + i] = static_cast<float>(std::cos(static_cast<double>(angle)));
            s[p * half + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
        }
    }
}

}  // namespace dflash
