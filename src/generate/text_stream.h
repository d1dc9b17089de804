// SPDX-License-Identifier: MIT
// Token ids to text that can be printed as it comes: a character whose bytes are spread over several tokens is held back until it is whole;
// bytes that form no character become U+FFFD. Special tokens and ids that the tokenizer does not know give no text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

#include "io/tokenizer.h"

namespace dflash {

// Joins pieces of bytes into well-formed UTF-8.
class Utf8Joiner {
public:
    std::string push(std::string_view bytes);  // what is complete by now
    std::string finish();                      // what will not become complete, as U+FFFD

private:
    std::string pending_;
};

class TextStream {
public:
    // The tokenizer must outlive the stream.
    explicit TextStream(const Tokenizer& tokenizer);
    std::string push(std::span<const std::int32_t> ids);
    std::string finish() { return joiner_.finish(); }

private:
    const Tokenizer& tokenizer_;
    std::unordered_set<std::int32_t> special_;
    Utf8Joiner joiner_;
};

// The text of a whole output.
std::string output_text(const Tokenizer& tokenizer, std::span<const std::int32_t> ids);

}  // namespace dflash
