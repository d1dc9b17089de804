// SPDX-License-Identifier: MIT
// Element types that a Tensor can hold.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dflash {

enum class DType : std::uint8_t { kF32, kF16, kBF16, kI32, kI64, kU8, kU16, kF64 };

constexpr std::size_t dtype_bytes(DType dtype) {
    switch (dtype) {
        case DType::kF32:
        case DType::kI32: return 4;
        case DType::kF16:
        case DType::kBF16:
        case DType::kU16: return 2;
        case DType::kI64:
        case DType::kF64: return 8;
        case DType::kU8: return 1;
    }
    return 0;
}

constexpr const char* dtype_name(DType dtype) {
    switch (dtype) {
        case DType::kF32: return "f32";
        case DType::kF16: return "f16";
        case DType::kBF16: return "bf16";
        case DType::kI32: return "i32";
        case DType::kI64: return "i64";
        case DType::kU8: return "u8";
        case DType::kU16: return "u16";
        case DType::kF64: return "f64";
    }
    return "?";
}

}  // namespace dflash
