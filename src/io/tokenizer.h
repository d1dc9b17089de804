// SPDX-License-Identifier: MIT
// Byte-level BPE from a Hugging Face tokenizer.json: added tokens, NFC, the split pattern of the file (PCRE2, no recursion), byte
// alphabet, merges by rank. Exact against the `tokenizers` library; time grows linearly with the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash {

struct AddedToken {
    std::int32_t id = 0;
    std::string content;
    bool special = false;
};

struct AddedTokenSpan {
    std::size_t begin = 0;  // bytes
    std::size_t end = 0;
    const AddedToken* token = nullptr;  // owned by the tokenizer
};

class Tokenizer {
public:
    // Reads a tokenizer.json, or the one in a folder. Unreadable merges, unknown parts or another model type are Error(kBadInput).
    explicit Tokenizer(const std::string& path);
    // The same from text; `where` names it in errors.
    static Tokenizer from_json(std::string_view text, const std::string& where);
    ~Tokenizer();
    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;

    // Added tokens in the text become their ids when `parse_added` is true; with false the text is encoded as plain text
    // (what a user wrote can then not forge a control token). Text that is not UTF-8 is Error(kBadInput). Nothing is put in front or
    // behind: a begin-of-text token is the template's business. Thread-safe.
    std::vector<std::int32_t> encode(std::string_view text, bool parse_added = true) const;
    // The added tokens that the text spells, leftmost and longest first.
    std::vector<AddedTokenSpan> find_added_tokens(std::string_view text) const;
    // The text as encode() sees it: in NFC where the file asks for that.
    std::string normalized(std::string_view text) const;
    // Lossless for ids from encode(), apart from NFC. Unknown ids are Error(kBadInput).
    std::string decode(const std::vector<std::int32_t>& ids, bool skip_special = false) const;
    // Raw bytes of one id (may be a part of a UTF-8 character: streaming joins them).
    std::string token_bytes(std::int32_t id) const;

    std::optional<std::int32_t> token_id(std::string_view token) const;  // added tokens, then the vocabulary as spelt
    const std::vector<AddedToken>& added_tokens() const;
    std::int64_t vocabulary_size() const;  // largest id + 1
    std::int64_t num_merges() const;
    std::string fingerprint() const;  // SHA-256 of the file

private:
    struct Impl;
    explicit Tokenizer(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace dflash
