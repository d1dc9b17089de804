// SPDX-License-Identifier: MIT
#include "model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/bf16.h"
#include "model/tensor_loader.h"

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

constexpr std::int64_t kStagedPositions = 4096;

// Positions first .. first + count - 1.
void fill_angles(const std::vector<float>& inv_freq, std::int64_t first, std::int64_t count, float* cos, float* sin) {
    const std::int64_t half = std::ssize(inv_freq);
#pragma omp parallel for schedule(static)
    for (std::int64_t p = 0; p < count; ++p) {
        for (std::int64_t i = 0; i < half; ++i) {
            const float angle = static_cast<float>(first + p) * inv_freq[static_cast<std::size_t>(i)];
            cos[p * half + i] = static_cast<float>(std::cos(static_cast<double>(angle)));
            sin[p * half + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
        }
    }
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
    const bool on_host = cos.device.type == DeviceType::kCpu;
    const HostBuffer staged(DType::kF32, {on_host ? 0 : 2 * std::min(positions, kStagedPositions), half});
    TensorLoader loader(cos.device);
    for (std::int64_t begin = 0; begin < positions; begin += kStagedPositions) {
        const std::int64_t count = std::min(kStagedPositions, positions - begin);
        const Tensor c = cos.slice_rows(begin, count);
        const Tensor s = sin.slice_rows(begin, count);
        if (on_host) {
            fill_angles(inv_freq, begin, count, c.f32(), s.f32());
            continue;
        }
        const Tensor host_c = staged.tensor().slice_rows(0, count);
        const Tensor host_s = staged.tensor().slice_rows(count, count);
        fill_angles(inv_freq, begin, count, host_c.f32(), host_s.f32());
        loader.copy(host_c.data, c);
        loader.copy(host_s.data, s);
    }
    loader.finish();
}

}  // namespace dflash
