// SPDX-License-Identifier: MIT
// The regular expression by which a tokenizer cuts text into words, run by PCRE2: just-in-time code with a stack of its own where the
// system allows it, else the interpreter, which keeps its state on the heap. The depth of the program's own stack never depends on the text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dflash {

class SplitPattern {
public:
    enum class Syntax {
        kRegex,    // as tokenizer.json spells it: Unicode classes, \s is White_Space
        kLiteral,  // the text itself
    };
    // Throws Error(kBadInput) naming `where` when the pattern does not compile.
    SplitPattern(std::string_view pattern, Syntax syntax, const std::string& where);
    ~SplitPattern();
    SplitPattern(SplitPattern&&) noexcept;
    SplitPattern& operator=(SplitPattern&&) noexcept;

    // Appends the pieces of `text` in order: each match is one piece, and so is each stretch between two matches. `text` is UTF-8 and
    // outlives the pieces. Error(kBadInput) when the pattern needs far more steps than the text is long.
    void split(std::string_view text, std::vector<std::string_view>& pieces) const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace dflash
