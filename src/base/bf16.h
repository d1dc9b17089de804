// SPDX-License-Identifier: MIT
// bfloat16 and IEEE half as storage formats: conversions to and from float. bf16 rounds to nearest even; NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace dflash {

inline float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

inline std::uint16_t float_to_bf16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
    return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// The 32 bits of a float in two halves: the nearest bf16, and what is missing, as a signed number of units of the last place. A bf16 weight and
// such a remainder are an f32 master without a second copy.
struct SplitFloat {
    std::uint16_t high = 0;  // bf16
    std::uint16_t low = 0;   // int16 bits
};
inline SplitFloat split_float(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return {static_cast<std::uint16_t>((bits + 0x8000U) >> 16), static_cast<std::uint16_t>(bits)};
}
inline float join_float(SplitFloat halves) {
    const auto rest = static_cast<std::uint32_t>(static_cast<std::int32_t>(static_cast<std::int16_t>(halves.low)));
    return std::bit_cast<float>((static_cast<std::uint32_t>(halves.high) << 16) + rest);
}

inline float f16_to_float(std::uint16_t half) {
    const std::uint32_t sign = (half & 0x8000U) << 16;
    const std::uint32_t exponent = (half >> 10) & 0x1fU;
    const std::uint32_t mantissa = half & 0x3ffU;
    if (exponent == 0) {  // zero or subnormal: mantissa x 2^-24
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
        return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
    }
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Rounds to nearest even; beyond the range gives infinity.
inline std::uint16_t float_to_f16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000U;
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U);
    if (magnitude >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // from 65,520 up
    if (magnitude < 0x38800000U) {  // subnormal: a multiple of 2^-24, which is the spacing of floats at 0.5
        return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U));
    }
    return static_cast<std::uint16_t>(sign | ((magnitude + 0xfffU + ((magnitude >> 13) & 1U) - 0x38000000U) >> 13));
}

}  // namespace dflash
