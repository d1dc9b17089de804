// SPDX-License-Identifier: MIT
// What a tokenizer.json says, checked and reduced to what byte-level BPE needs. Anything in the file that would change the ids and is not
// built here is refused by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/split_pattern.h"
#include "io/tokenizer.h"

namespace dflash {

struct TokenizerFile {
    struct Pattern {
        std::string text;
        SplitPattern::Syntax syntax;
    };
    struct Merge {
        std::int32_t left;
        std::int32_t right;
        std::int32_t merged;
    };
    std::unordered_map<std::string, std::int32_t> vocabulary;  // as spelt, in the byte alphabet
    std::vector<Merge> merges;                                 // by rank
    bool ignore_merges = false;                                // a word that is in the vocabulary is taken whole
    bool is_nfc = false;
    std::vector<Pattern> patterns;  // applied one after another
    std::vector<AddedToken> added_tokens;
    std::vector<bool> is_added_normalized;  // as added_tokens: looked for after normalization instead of before
};

// Ids above this are taken for a damaged file.
inline constexpr std::int64_t kLargestTokenId = (std::int64_t{1} << 24) - 1;

// Throws Error(kBadInput) naming `where`.
TokenizerFile parse_tokenizer_file(std::string_view text, const std::string& where);

}  // namespace dflash
