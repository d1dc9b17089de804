// SPDX-License-Identifier: MIT
// Sizes as people write them: "96GiB", "80 GB", "512MiB", "4096". GB = 10^9 bytes, GiB = 2^30.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dflash {

// Throws Error(kBadInput) naming `what` (a flag) when the text is no positive size.
std::size_t parse_bytes(std::string_view text, const std::string& what);
// "17.80 GB", "512.0 MB", "96 B": decimal units.
std::string format_bytes(std::size_t bytes);

}  // namespace dflash
