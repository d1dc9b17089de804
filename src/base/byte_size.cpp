// SPDX-License-Identifier: MIT
#include "base/byte_size.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace dflash {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 10> kUnits{{{"", 1.0},
                                                                      {"b", 1.0},
                                                                      {"kb", 1e3},
                                                                      {"mb", 1e6},
                                                                      {"gb", 1e9},
                                                                      {"tb", 1e12},
                                                                      {"kib", 0x1p10},
                                                                      {"mib", 0x1p20},
                                                                      {"gib", 0x1p30},
                                                                      {"tib", 0x1p40}}};

}  // namespace

std::size_t parse_bytes(std::string_view text, const std::string& what) {
    double value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    std::string unit;
    for (const char c : text.substr(static_cast<std::size_t>(end - text.data()))) {
        if (c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    if (status == std::errc() && std::isfinite(value)) {
        for (const auto& [name, factor] : kUnits) {
            const double bytes = value * factor;
            if (unit == name && bytes >= 1 && bytes < 0x1p62) return static_cast<std::size_t>(bytes);
        }
    }
    throw_bad_input("{}: '{}' is no size; write 96GiB, 80GB, 512MiB or a number of bytes", what, text);
}

std::string format_bytes(std::size_t bytes) {
    const auto value = static_cast<double>(bytes);
    if (value >= 1e9) return fmt::format("{:.2f} GB", value / 1e9);
    if (value >= 1e6) return fmt::format("{:.1f} MB", value / 1e6);
    if (value >= 1e3) return fmt::format("{:.1f} kB", value / 1e3);
    return fmt::format("{} B", bytes);
}

}  // namespace dflash
