// SPDX-License-Identifier: MIT
// The byte alphabet of byte-level BPE: each of the 256 bytes is spelt as one printable character. Bytes that print in Latin-1
// (33-126, 161-172, 174-255) stand for themselves; the other 68 take U+0100, U+0101, ... in order.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dflash {

// The bytes that `spelt` stands for; nothing when a character of it is outside the alphabet or it is not UTF-8.
std::optional<std::string> bytes_from_alphabet(std::string_view spelt);

}  // namespace dflash
