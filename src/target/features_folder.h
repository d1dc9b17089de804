// SPDX-License-Identifier: MIT
// A folder of stored features, what `dflash features --out DIR` writes and `dflash train --features DIR` reads:
//   manifest.json              target fingerprint, layer ids, dtype, template, an entry a document
//   features-00000.safetensors ROW.hidden.{n+1} (tokens, C) for each layer n, ROW.final; ROW is the document's row of the data set
//   data/                      the data set itself (ids, loss masks), as `dflash prepare` makes it, so that packing is the same
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/chat_template.h"

namespace dflash {

struct FeaturesManifest {
    struct Shard {
        std::string file;  // name within the folder
        std::int64_t bytes = 0;
    };
    struct Document {
        std::string id;
        std::int64_t tokens = 0;
        std::int64_t shard = 0;
    };
    std::string target_fingerprint;
    std::string data_fingerprint;
    std::int64_t hidden = 0;
    std::vector<std::int64_t> layers;  // n: the residual after layer n
    bool has_final = false;
    std::string dtype;  // "f32" or "bf16"
    ChatTemplate chat_template;
    std::vector<Shard> shards;
    std::vector<Document> documents;
};

std::string features_manifest_text(const FeaturesManifest& manifest);
// Error(kBadInput) when the folder holds no manifest of stored features, or a shard is missing or cut.
FeaturesManifest read_features_manifest(const std::string& folder);

std::string features_manifest_path(const std::string& folder);
std::string features_data_folder(const std::string& folder);
std::string features_shard_name(std::int64_t shard);
std::string hidden_tensor_name(const std::string& document, std::int64_t layer);  // "DOCUMENT.hidden.{layer + 1}"
std::string final_tensor_name(const std::string& document);

}  // namespace dflash
