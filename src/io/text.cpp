// SPDX-License-Identifier: MIT
#include "io/text.h"

#include <fmt/core.h>

namespace dflash {

std::string printable(std::string_view text, std::size_t limit) {
    std::string line;
    for (const char c : text.substr(0, limit)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte == 0x7f) {
            line += fmt::format("\\x{:02x}", byte);
        } else {
            line += c;
        }
    }
    if (text.size() > limit) line += "...";
    return line;
}

std::string joined_names(const std::vector<std::string>& names, std::size_t limit) {
    std::string line;
    for (std::size_t i = 0; i < names.size() && i < limit; ++i) line += (i ? ", " : "") + printable(names[i]);
    if (names.size() > limit) line += fmt::format(" and {} more", names.size() - limit);
    return line;
}

}  // namespace dflash
