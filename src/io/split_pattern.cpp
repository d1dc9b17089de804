// SPDX-License-Identifier: MIT
#include "io/split_pattern.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/check.h"
#include "base/error.h"
#include "io/text.h"

namespace dflash {

namespace {

template <auto Free>
struct Freer {
    template <typename T>
    void operator()(T* object) const {
        Free(object);
    }
};
using Code = std::unique_ptr<pcre2_code, Freer<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>>;

constexpr std::size_t kJitStackStart = std::size_t{32} << 10;
constexpr std::size_t kJitStackLimit = std::size_t{8} << 20;
constexpr std::uint32_t kHeapLimitKib = 1U << 20;  // of the interpreter
constexpr std::uint32_t kLeastSteps = 10'000'000;
constexpr std::size_t kStepsPerByte = 100;  // the patterns in use need 2 or 3

// What a match needs beside the pattern; one a thread, for all patterns (only the ends of the match are asked for).
struct MatchScratch {
    MatchContext context{pcre2_match_context_create(nullptr)};
    MatchData data{pcre2_match_data_create(1, nullptr)};
    JitStack stack{pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr)};

    MatchScratch() {
        DFLASH_CHECK(context && data, "out of memory for the split pattern");
        pcre2_set_heap_limit(context.get(), kHeapLimitKib);
        if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    }
};

MatchScratch& scratch_of_thread() {
    thread_local MatchScratch scratch;
    return scratch;
}

// PCRE2's \s also takes U+180E, which is no white space in the `tokenizers` library's engine nor in Unicode since 6.3.
std::string with_unicode_space(std::string_view pattern) {
    std::string out;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        if (pattern[i] != '\\' || i + 1 == pattern.size()) {
            out += pattern[i];
            continue;
        }
        const char escaped = pattern[++i];
        if (escaped == 's') {
            out += "\\p{White_Space}";
        } else if (escaped == 'S') {
            out += "\\P{White_Space}";
        } else {
            out += {'\\', escaped};
        }
    }
    return out;
}

std::string pcre2_message(int error) {
    std::array<PCRE2_UCHAR, 160> text{};
    pcre2_get_error_message(error, text.data(), text.size());
    return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR code_units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct SplitPattern::Impl {
    Code code;
    std::string where;
    bool is_compiled_to_machine_code = false;

    // True and the ends of the next match at or after `from`.
    bool find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end) const;
};

SplitPattern::SplitPattern(std::string_view pattern, Syntax syntax, const std::string& where) : impl_(std::make_unique<Impl>()) {
    const bool is_literal = syntax == Syntax::kLiteral;
    const std::string source = is_literal ? std::string(pattern) : with_unicode_space(pattern);
    const std::uint32_t options = is_literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    int error = 0;
    PCRE2_SIZE offset = 0;
    impl_->where = where;
    impl_->code.reset(pcre2_compile(code_units(source), source.size(), options, &error, &offset, nullptr));
    if (!impl_->code) {
        throw_bad_input("{}: split pattern '{}' cannot be read: {} (at byte {})", where, printable(source), pcre2_message(error), offset);
    }
    impl_->is_compiled_to_machine_code = pcre2_jit_compile(impl_->code.get(), PCRE2_JIT_COMPLETE) == 0;
}

SplitPattern::~SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;

bool SplitPattern::Impl::find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end) const {
    MatchScratch& scratch = scratch_of_thread();
    const std::size_t steps = std::min<std::size_t>(UINT32_MAX, kLeastSteps + kStepsPerByte * text.size());
    pcre2_set_match_limit(scratch.context.get(), static_cast<std::uint32_t>(steps));
    const auto match = [&](std::uint32_t options) {
        // The text is known to be UTF-8; checking it again at every match would take quadratic time.
        return pcre2_match(code.get(), code_units(text), text.size(), from, options | PCRE2_NO_UTF_CHECK, scratch.data.get(),
                           scratch.context.get());
    };
    int found = match(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) return false;
    if (found < 0) throw_bad_input("{}: the split pattern fails on a text of {} bytes: {}", where, text.size(), pcre2_message(found));
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch.data.get());
    begin = ends[0];
    end = ends[1];
    return true;
}

void SplitPattern::split(std::string_view text, std::vector<std::string_view>& pieces) const {
    std::size_t piece_begin = 0;  // of what is not yet in a piece
    std::size_t from = 0;
    std::size_t begin = 0;
    std::size_t end = 0;
    while (from < text.size() && impl_->find(text, from, begin, end)) {
        if (end <= begin) {  // an empty match cuts nothing: look on behind the next character
            from = begin + 1;
            while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0U) == 0x80U) ++from;
            continue;
        }
        if (begin > piece_begin) pieces.push_back(text.substr(piece_begin, begin - piece_begin));
        pieces.push_back(text.substr(begin, end - begin));
        piece_begin = from = end;
    }
    if (piece_begin < text.size()) pieces.push_back(text.substr(piece_begin));
}

}  // namespace dflash
