// SPDX-License-Identifier: MIT
#include "io/byte_alphabet.h"

#include <array>
#include <cstddef>

#include "io/unicode.h"

namespace dflash {

namespace {

constexpr std::size_t kCharacters = 256 + 68;  // the last one used is U+0143
constexpr int kUnused = -1;

constexpr bool prints_in_latin1(int byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174; }

constexpr std::array<int, kCharacters> make_byte_of_character() {
    std::array<int, kCharacters> table{};
    for (int& entry : table) entry = kUnused;
    std::size_t next = 256;
    for (int byte = 0; byte < 256; ++byte) table[prints_in_latin1(byte) ? static_cast<std::size_t>(byte) : next++] = byte;
    return table;
}
constexpr auto kByteOfCharacter = make_byte_of_character();

}  // namespace

std::optional<std::string> bytes_from_alphabet(std::string_view spelt) {
    if (find_invalid_utf8(spelt)) return std::nullopt;
    std::string bytes;
    for (std::size_t at = 0; at < spelt.size();) {
        const char32_t character = next_code_point(spelt, at);
        if (character >= kCharacters || kByteOfCharacter[character] == kUnused) return std::nullopt;
        bytes += static_cast<char>(kByteOfCharacter[character]);
    }
    return bytes;
}

}  // namespace dflash
