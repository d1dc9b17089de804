// SPDX-License-Identifier: MIT
#include "generate/text_stream.h"

#include <algorithm>

#include "io/unicode.h"

namespace dflash {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

std::size_t character_length(unsigned char lead) { return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

// Bytes at the end that more bytes could still make a character of.
std::size_t incomplete_bytes(std::string_view text) {
    for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
        const auto byte = static_cast<unsigned char>(text[text.size() - back]);
        if ((byte & 0xC0U) == 0x80U) continue;  // a continuation: its lead is further left
        return character_length(byte) > back ? back : 0;
    }
    return 0;
}

std::string well_formed(std::string_view text) {
    std::string result;
    while (const auto bad = find_invalid_utf8(text)) {
        result.append(text.substr(0, *bad)).append(kReplacement);
        text.remove_prefix(*bad + 1);
    }
    return result.append(text);
}

}  // namespace

std::string Utf8Joiner::push(std::string_view bytes) {
    pending_ += bytes;
    const std::size_t complete = pending_.size() - incomplete_bytes(pending_);
    std::string text = well_formed(std::string_view(pending_).substr(0, complete));
    pending_.erase(0, complete);
    return text;
}

std::string Utf8Joiner::finish() {
    std::string text = well_formed(pending_);
    pending_.clear();
    return text;
}

TextStream::TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    for (const AddedToken& token : tokenizer.added_tokens()) {
        if (token.special) special_.insert(token.id);
    }
}

std::string TextStream::push(std::span<const std::int32_t> ids) {
    std::string bytes;
    for (const std::int32_t id : ids) {
        if (id < tokenizer_.vocabulary_size() && special_.count(id) == 0) bytes += tokenizer_.token_bytes(id);
    }
    return joiner_.push(bytes);
}

std::string output_text(const Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
    TextStream stream(tokenizer);
    std::string text = stream.push(ids);
    return text + stream.finish();
}

}  // namespace dflash
