// SPDX-License-Identifier: MIT
// Text for one-line messages: names out of untrusted files, and lists of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dflash {

// The text with control bytes escaped and cut after `limit` bytes, so that a message stays one readable line.
std::string printable(std::string_view text, std::size_t limit = 200);
// "a, b, c and 17 more": at most `limit` names.
std::string joined_names(const std::vector<std::string>& names, std::size_t limit = 12);

}  // namespace dflash
