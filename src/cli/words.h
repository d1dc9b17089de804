// SPDX-License-Identifier: MIT
// What a word on the command line may be, checked alike for every flag of every command.
#pragma once

#include <cstdint>

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace dflash::cli {

// Call before parsing. Error(kBadInput) for "--flag=" with nothing behind it, which the parser would fill with the word that follows.
void refuse_cut_flags(int argc, const char* const* argv);

// Call once all commands are added: their flags then refuse empty words (but for --system, where it means no text), words that are not UTF-8,
// and numbers that are not wholly a decimal number in the range of the flag's type.
void check_words(CLI::App& app);

// A whole number from `low` to `high`.
CLI::Validator between(std::int64_t low, std::int64_t high);
// 0 or more.
CLI::Validator not_negative();

constexpr std::int64_t kMaxThreads = 4096;

}  // namespace dflash::cli
