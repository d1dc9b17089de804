// SPDX-License-Identifier: MIT
// UTF-8 checks and NFC (Unicode normalization form C) on utf8proc's tables. Time is linear in the text but for the sorting of long runs
// of combining marks (n log n).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace dflash {

// Offset of the first byte that is not part of well-formed UTF-8 (no surrogates, no overlong forms); nothing when all is well.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);
// The character at `at`, which moves behind it. The text must be well-formed.
char32_t next_code_point(std::string_view text, std::size_t& at);
void append_utf8(char32_t code_point, std::string& text);
// The text must be well-formed.
std::string to_nfc(std::string_view text);

}  // namespace dflash
