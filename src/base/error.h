// SPDX-License-Identifier: MIT
// The one exception type of the project. A bad-input error becomes exit code 2, any other failure exit code 1;
// only cli/ catches. Messages are one line: what is wrong, where, and what to do about it.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace dflash {

enum class ErrorKind {
    kBadInput,  // a file, flag or value that the user gave
    kFailed,    // anything else: the disk, the device, a broken assumption
};

class Error : public std::runtime_error {
public:
    Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
    ErrorKind kind() const { return kind_; }

private:
    ErrorKind kind_;
};

template <typename... Args>
[[noreturn]] void throw_bad_input(fmt::format_string<Args...> format, Args&&... args) {
    throw Error(ErrorKind::kBadInput, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void throw_failed(fmt::format_string<Args...> format, Args&&... args) {
    throw Error(ErrorKind::kFailed, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace dflash
