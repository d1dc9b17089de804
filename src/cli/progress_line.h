// SPDX-License-Identifier: MIT
// How far a long command is, and the time left: one line that renews itself on a terminal, plain lines now and then elsewhere. On stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dflash::cli {

class ProgressLine {
public:
    // `first`: what earlier runs have done already; it does not count for the speed.
    ProgressLine(std::string label, std::int64_t total, std::string unit, std::int64_t first = 0);
    ~ProgressLine();
    ProgressLine(const ProgressLine&) = delete;
    ProgressLine& operator=(const ProgressLine&) = delete;
    void update(std::int64_t done, const std::string& note = "");

private:
    using Clock = std::chrono::steady_clock;
    std::string label_, unit_;
    std::int64_t total_, first_;
    bool terminal_;
    bool line_open_ = false;
    Clock::time_point start_ = Clock::now();
    Clock::time_point shown_ = start_;
};

// "59 s", "12 min 5 s", "3 h 40 min".
std::string format_duration(double seconds);

}  // namespace dflash::cli
