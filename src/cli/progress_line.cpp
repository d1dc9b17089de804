// SPDX-License-Identifier: MIT
#include "cli/progress_line.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <utility>

namespace dflash::cli {
namespace {

constexpr double kTerminalSeconds = 0.2;
constexpr double kPlainSeconds = 10;

}  // namespace

std::string format_duration(double seconds) {
    const auto whole = static_cast<std::int64_t>(std::llround(seconds));
    if (whole < 60) return fmt::format("{} s", whole);
    if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
    return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

ProgressLine::ProgressLine(std::string label, std::int64_t total, std::string unit, std::int64_t first)
    : label_(std::move(label)), unit_(std::move(unit)), total_(total), first_(first), terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressLine::~ProgressLine() {
    if (line_open_) std::fputc('\n', stderr);
}

void ProgressLine::update(std::int64_t done, const std::string& note) {
    const Clock::time_point now = Clock::now();
    const double since_shown = std::chrono::duration<double>(now - shown_).count();
    if (done < total_ && since_shown < (terminal_ ? kTerminalSeconds : kPlainSeconds)) return;
    shown_ = now;
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    std::string line = fmt::format("{} {}/{} {}", label_, done, total_, unit_);
    if (!note.empty()) line += ", " + note;
    if (done >= total_) {
        line += ", took " + format_duration(elapsed);
    } else if (done > first_) {
        line += ", left " + format_duration(elapsed / static_cast<double>(done - first_) * static_cast<double>(total_ - done));
    }
    if (terminal_) {
        fmt::print(stderr, "\r\x1b[K{}", line);
        std::fflush(stderr);
        line_open_ = true;
    } else {
        fmt::print(stderr, "{}\n", line);
    }
}

}  // namespace dflash::cli
