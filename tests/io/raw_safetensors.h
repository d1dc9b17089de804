// SPDX-License-Identifier: MIT
// safetensors files byte by byte, so that malformed ones can be made too.
#pragma once

#include <cstdint>
#include <string>

namespace dflash::testing {

inline std::string little_endian(std::uint64_t value) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>((value >> (8 * i)) & 0xFFU);
    return bytes;
}

inline std::string raw_safetensors(const std::string& header, std::size_t data_bytes) {
    return little_endian(header.size()) + header + std::string(data_bytes, '\1');
}

// {"a": {...}} of one tensor.
inline std::string one_tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "{\"a\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
}

}  // namespace dflash::testing
