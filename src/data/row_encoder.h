// SPDX-License-Identifier: MIT
// From lines of chat files to documents: parse, render, truncate, check, count. The one code behind `dflash prepare` and data sets that are
// made in memory. Lines are worked on in parallel; documents come out in the order of the lines, whatever the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "io/tokenizer.h"

namespace dflash {

class RowEncoder {
public:
    using Sink = std::function<void(std::span<const std::int32_t> ids, std::span<const std::uint8_t> loss_mask, std::string_view row_id)>;

    // Error(kBadInput) when the target has no readable tokenizer (a missing one is an error only for rows that need it).
    explicit RowEncoder(const PrepareSettings& settings);
    // All rows of all inputs. Error(kBadInput) when none is usable, or, with `strict`, at the first refused one.
    PrepareReport run(const Sink& sink);
    std::string tokenizer_fingerprint() const { return tokenizer_ ? tokenizer_->fingerprint() : ""; }

private:
    struct Line {
        std::string text;
        std::string where;
    };
    struct Outcome;
    void run_file(const std::string& path, const Sink& sink);
    void run_lines(const std::vector<Line>& lines, const Sink& sink);
    Outcome encode(const Line& line) const;
    void count(const Outcome& outcome, const Sink& sink);

    const PrepareSettings& settings_;
    std::optional<Tokenizer> tokenizer_;
    std::int64_t vocabulary_ = 0;  // rows of the target's embedding; 0 when its config does not say
    PrepareReport report_;
};

}  // namespace dflash
