// SPDX-License-Identifier: MIT
// The header of a safetensors file: a pure function from bytes to checked entries, shared by the reader and its fuzz target.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "io/safetensors.h"

namespace dflash {

struct SafetensorsHeader {
    std::map<std::string, SafetensorsEntry> entries;
    std::map<std::string, std::string> metadata;
};

// `file` is the whole file. The ranges of the entries are inside it, disjoint and without gaps. Throws Error(kBadInput), naming `path`.
SafetensorsHeader parse_safetensors(std::string_view file, const std::string& path);

// Bytes of one element; 0 for a dtype that is not known.
std::size_t safetensors_dtype_bytes(std::string_view dtype);

}  // namespace dflash
