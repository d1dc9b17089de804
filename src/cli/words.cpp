// SPDX-License-Identifier: MIT
#include "cli/words.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <system_error>
#include <type_traits>

#include "base/error.h"
#include "io/text.h"
#include "io/unicode.h"

namespace dflash::cli {
namespace {

template <typename Number>
bool is_number(const std::string& word, Number& value) {
    const auto [end, status] = std::from_chars(word.data(), word.data() + word.size(), value);
    return status == std::errc() && end == word.data() + word.size();
}

// Rewrites the word as plain decimal digits: the parser would read 010 as octal. An empty result is all well.
template <typename Number>
std::string check_whole_number(std::string& word) {
    Number value = 0;
    if (!is_number(word, value))
        return fmt::format("'{}' is no whole number{}", printable(word), std::is_signed_v<Number> ? "" : " from 0 on");
    word = std::to_string(value);
    return "";
}

std::string check_real_number(const std::string& word) {
    double value = 0;
    return is_number(word, value) && std::isfinite(value) ? "" : fmt::format("'{}' is no number", printable(word));
}

std::string check_word(std::string& word, const std::string& type) {
    if (word.empty()) return "the value is empty";
    if (find_invalid_utf8(word)) return "the value is not UTF-8 text";
    if (type == "INT") return check_whole_number<std::int64_t>(word);
    if (type == "UINT") return check_whole_number<std::uint64_t>(word);
    return type == "FLOAT" ? check_real_number(word) : "";
}

}  // namespace

void refuse_cut_flags(int argc, const char* const* argv) {
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word.size() > 3 && word.starts_with("--") && word.find('=') == word.size() - 1) {
            const std::string flag = word.substr(0, word.size() - 1);
            throw_bad_input("{} has no value: write {} VALUE", printable(word), printable(flag));
        }
    }
}

void check_words(CLI::App& app) {
    for (CLI::Option* option : app.get_options()) {
        if (option->get_items_expected_max() == 0) continue;  // takes no value
        const bool may_be_empty = option->get_name() == "--system";
        const std::string name = option->get_type_name();  // "INT", or "TEXT:" and what other checks say of themselves
        const auto check = [type = name.substr(0, name.find(':')), may_be_empty](std::string& word) {
            return word.empty() && may_be_empty ? std::string() : check_word(word, type);
        };
        option->transform(CLI::Validator(check, ""));
    }
    for (CLI::App* command : app.get_subcommands({})) check_words(*command);
}

CLI::Validator between(std::int64_t low, std::int64_t high) {
    return CLI::Validator(
        [low, high](const std::string& word) {
            std::int64_t value = 0;
            if (is_number(word, value) && value >= low && value <= high) return std::string();
            const bool open = high == std::numeric_limits<std::int64_t>::max();
            return fmt::format("is {}; it must be {}", printable(word),
                               open ? fmt::format("{} or more", low) : fmt::format("{} to {}", low, high));
        },
        "");
}

CLI::Validator not_negative() { return between(0, std::numeric_limits<std::int64_t>::max()); }

}  // namespace dflash::cli
