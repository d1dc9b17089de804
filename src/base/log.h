// SPDX-License-Identifier: MIT
// Log lines go to stderr (and to a file when a run folder exists) and start with their area: "[data] ...".
// Results go to stdout and are printed by cli/ alone. Implemented on spdlog, which this header does not pull in.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>

namespace dflash {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

void set_log_level(LogLevel level);
// Also append every line to `path`; an empty path stops that. Throws Error when the file cannot be opened.
void set_log_file(const std::string& path);
void log_line(LogLevel level, const std::string& line);

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
    log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
    log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
    log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace dflash
