// SPDX-License-Identifier: MIT
#include "io/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace dflash {

namespace {

const utf8proc_uint8_t* utf8(std::string_view text) { return reinterpret_cast<const utf8proc_uint8_t*>(text.data()); }

int combining_class(utf8proc_int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; }

bool nfc_leaves(std::string_view text) {
    // Two bytes below U+0300 start with 0xC2..0xCB; everything from there on starts with 0xCC or more.
    return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
}

std::vector<utf8proc_int32_t> decompose(std::string_view text) {
    std::vector<utf8proc_int32_t> points;
    points.reserve(text.size());
    std::array<utf8proc_int32_t, 32> parts{};  // the longest canonical decomposition has 4
    for (std::size_t at = 0; at < text.size();) {
        const auto point = static_cast<utf8proc_int32_t>(next_code_point(text, at));
        int boundary = 0;
        const auto n = utf8proc_decompose_char(point, parts.data(), static_cast<utf8proc_ssize_t>(parts.size()),
                                               static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE), &boundary);
        DFLASH_CHECK(n > 0 && static_cast<std::size_t>(n) <= parts.size(), "decomposition of U+{:04X} failed", point);
        points.insert(points.end(), parts.begin(), parts.begin() + n);
    }
    return points;
}

// Canonical order: each run of combining marks sorted by class, equal classes in place. (utf8proc's own way is quadratic.)
void order_marks(std::vector<utf8proc_int32_t>& points) {
    for (auto run = points.begin(); run != points.end();) {
        run = std::find_if(run, points.end(), [](auto point) { return combining_class(point) != 0; });
        const auto end = std::find_if(run, points.end(), [](auto point) { return combining_class(point) == 0; });
        std::stable_sort(run, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
        run = end;
    }
}

}  // namespace

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
        if (static_cast<unsigned char>(text[at]) < 0x80) {
            ++at;
            continue;
        }
        utf8proc_int32_t point = 0;
        const auto bytes = utf8proc_iterate(utf8(text) + at, static_cast<utf8proc_ssize_t>(text.size() - at), &point);
        if (bytes <= 0) return at;
        at += static_cast<std::size_t>(bytes);
    }
    return std::nullopt;
}

char32_t next_code_point(std::string_view text, std::size_t& at) {
    utf8proc_int32_t point = 0;
    const auto bytes = utf8proc_iterate(utf8(text) + at, static_cast<utf8proc_ssize_t>(text.size() - at), &point);
    DFLASH_CHECK(bytes > 0, "not UTF-8 at byte {}", at);
    at += static_cast<std::size_t>(bytes);
    return static_cast<char32_t>(point);
}

void append_utf8(char32_t code_point, std::string& text) {
    std::array<utf8proc_uint8_t, 4> bytes{};
    const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes.data());
    text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(n));
}

std::string to_nfc(std::string_view text) {
    if (nfc_leaves(text)) return std::string(text);
    std::vector<utf8proc_int32_t> points = decompose(text);
    order_marks(points);
    const auto n = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                            static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    DFLASH_CHECK(n >= 0, "composition failed: {}", utf8proc_errmsg(n));
    std::string composed;
    composed.reserve(text.size());
    for (utf8proc_ssize_t i = 0; i < n; ++i) append_utf8(static_cast<char32_t>(points[static_cast<std::size_t>(i)]), composed);
    return composed;
}

}  // namespace dflash
