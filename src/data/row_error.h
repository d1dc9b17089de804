// SPDX-License-Identifier: MIT
// Why one row of a chat file cannot be used. `reason` is one of a fixed set of phrases, so that rows can be counted by it; the detail says
// what was found in this row.
#pragma once

#include <string>

#include "base/error.h"

namespace dflash {

class RowError : public Error {
public:
    RowError(const std::string& where, const std::string& reason, const std::string& detail = "")
        : Error(ErrorKind::kBadInput, where + ": " + reason + (detail.empty() ? "" : " (" + detail + ")")), reason_(reason) {}
    const std::string& reason() const { return reason_; }

private:
    std::string reason_;
};

}  // namespace dflash
