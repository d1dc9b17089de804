// SPDX-License-Identifier: MIT
// The header parser on arbitrary bytes: it either refuses them with Error(kBadInput) in one line, or every entry lies inside the file.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "io/safetensors_header.h"

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

void check_entries(const dflash::SafetensorsHeader& header, std::string_view file) {
    std::size_t covered = 0;
    for (const auto& [name, entry] : header.entries) {
        require(entry.elements() >= 0);
        require(static_cast<std::size_t>(entry.elements()) * dflash::safetensors_dtype_bytes(entry.dtype) == entry.bytes);
        const auto begin = static_cast<std::size_t>(entry.data - file.data());
        require(begin <= file.size() && entry.bytes <= file.size() - begin);
        for (std::size_t i = 0; i < entry.bytes; i += 4096) require(entry.data[i] == file[begin + i]);
        covered += entry.bytes;
    }
    require(covered <= file.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view file(reinterpret_cast<const char*>(data), size);
    try {
        check_entries(dflash::parse_safetensors(file, "fuzz"), file);
    } catch (const dflash::Error& error) {
        require(error.kind() == dflash::ErrorKind::kBadInput);
        require(std::string_view(error.what()).find('\n') == std::string_view::npos);
    }
    return 0;
}
