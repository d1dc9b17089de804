// SPDX-License-Identifier: MIT
#include <algorithm>
#include <filesystem>

#include "io/atomic_file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/target_weights.h"

namespace dflash {

namespace {

constexpr std::size_t kSamples = 4;  // evenly spread over a tensor, the first and last bytes among them
constexpr std::size_t kSampleBytes = 256;

}  // namespace

std::string target_fingerprint(const std::string& folder) {
    const SafetensorsFolder checkpoint(folder);
    // Parsed and written again: key order and white space do not count.
    std::string text = read_json_file((std::filesystem::path(folder) / "config.json").string()).dump() + "\n";
    for (const std::string& name : checkpoint.names()) {  // sorted
        const SafetensorsEntry& entry = *checkpoint.find(name);
        text += Json{name, entry.dtype, entry.shape}.dump();
        const std::size_t bytes = std::min(entry.bytes, kSampleBytes);
        for (std::size_t i = 0; i < kSamples; ++i) text.append(entry.data + (entry.bytes - bytes) * i / (kSamples - 1), bytes);
    }
    checkpoint.drop_pages();
    return sha256_hex(text);
}

}  // namespace dflash
