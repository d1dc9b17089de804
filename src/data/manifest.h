// SPDX-License-Identifier: MIT
// manifest.json of a prepared data set: how it was made, what it holds, and size and checksum of each shard.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace dflash {

struct DatasetManifest {
    struct Shard {
        std::string file;  // name within the folder
        std::int64_t bytes = 0;
        std::int64_t crc32c = 0;
        std::int64_t documents = 0;
        std::int64_t tokens = 0;
    };
    ChatTemplate chat_template;
    std::int64_t max_length = 0;
    std::string tokenizer_fingerprint;
    std::string fingerprint;
    PrepareReport report;
    std::vector<Shard> shards;
};

inline constexpr const char* kManifestName = "manifest.json";

std::string manifest_text(const DatasetManifest& manifest);
// Error(kBadInput) when the folder holds no manifest of a data set.
DatasetManifest read_manifest(const std::string& folder);
bool is_prepared_folder(const std::string& folder);

}  // namespace dflash
