// SPDX-License-Identifier: MIT
#include "target/features_folder.h"

#include <fmt/core.h>

#include <filesystem>

#include "base/error.h"
#include "io/json.h"

namespace dflash {
namespace {

constexpr const char* kFormat = "dflash-features";
constexpr std::int64_t kVersion = 1;

TemplateKind template_kind(const std::string& name, const std::string& where) {
    for (const TemplateKind kind : {TemplateKind::kChatml, TemplateKind::kQwen3, TemplateKind::kQwen35, TemplateKind::kLlama3}) {
        if (name == template_name(kind)) return kind;
    }
    throw_bad_input("{}: template '{}' is not known", where, name);
}

const Json& json_array(const Json& object, const char* key, const std::string& where) {
    if (!object.contains(key) || !object.at(key).is_array()) throw_bad_input("{}: key '{}' is missing or not a list", where, key);
    return object.at(key);
}

// Sizes are checked here, contents by the safetensors reader.
void check_shard(const std::string& folder, const FeaturesManifest::Shard& shard) {
    const std::string path = folder + "/" + shard.file;
    std::error_code failed;
    const auto bytes = std::filesystem::file_size(path, failed);
    if (failed) throw_bad_input("{} is missing: the folder of features is incomplete", path);
    if (static_cast<std::int64_t>(bytes) != shard.bytes) {
        throw_bad_input("{} has {} bytes, its manifest says {}: the folder of features is damaged", path, bytes, shard.bytes);
    }
}

}  // namespace

std::string features_manifest_path(const std::string& folder) { return folder + "/manifest.json"; }
std::string features_data_folder(const std::string& folder) { return folder + "/data"; }
std::string features_shard_name(std::int64_t shard) { return fmt::format("features-{:05}.safetensors", shard); }
std::string hidden_tensor_name(const std::string& document, std::int64_t layer) { return fmt::format("{}.hidden.{}", document, layer + 1); }
std::string final_tensor_name(const std::string& document) { return document + ".final"; }

std::string features_manifest_text(const FeaturesManifest& m) {
    Json json = {{"format", kFormat},
                 {"version", kVersion},
                 {"target_fingerprint", m.target_fingerprint},
                 {"data_fingerprint", m.data_fingerprint},
                 {"hidden_size", m.hidden},
                 {"layer_ids", m.layers},
                 {"final", m.has_final},
                 {"dtype", m.dtype},
                 {"template", template_name(m.chat_template.kind)},
                 {"thinking", m.chat_template.thinking},
                 {"system", m.chat_template.system},
                 {"shards", Json::array()},
                 {"documents", Json::array()}};
    for (const FeaturesManifest::Shard& shard : m.shards) json["shards"].push_back({{"file", shard.file}, {"bytes", shard.bytes}});
    for (const FeaturesManifest::Document& document : m.documents) {
        json["documents"].push_back({{"id", document.id}, {"tokens", document.tokens}, {"shard", document.shard}});
    }
    return json.dump(1) + "\n";
}

FeaturesManifest read_features_manifest(const std::string& folder) {
    const std::string path = features_manifest_path(folder);
    const Json json = read_json_file(path);
    if (json_get_or<std::string>(json, "format", "", path) != kFormat) {
        throw_bad_input("{}: is not the manifest of stored features (made by `dflash features --out DIR`)", path);
    }
    const auto version = json_get<std::int64_t>(json, "version", path);
    if (version != kVersion) throw_bad_input("{}: version {} of the format, this program reads {}", path, version, kVersion);
    FeaturesManifest m;
    m.target_fingerprint = json_get<std::string>(json, "target_fingerprint", path);
    m.data_fingerprint = json_get<std::string>(json, "data_fingerprint", path);
    m.hidden = json_get<std::int64_t>(json, "hidden_size", path);
    m.layers = json_get<std::vector<std::int64_t>>(json, "layer_ids", path);
    m.has_final = json_get<bool>(json, "final", path);
    m.dtype = json_get<std::string>(json, "dtype", path);
    m.chat_template.kind = template_kind(json_get<std::string>(json, "template", path), path);
    m.chat_template.thinking = json_get<bool>(json, "thinking", path);
    m.chat_template.system = json_get<std::string>(json, "system", path);
    for (const Json& shard : json_array(json, "shards", path)) {
        m.shards.push_back({json_get<std::string>(shard, "file", path), json_get<std::int64_t>(shard, "bytes", path)});
        if (m.shards.back().file.find('/') != std::string::npos)
            throw_bad_input("{}: shard '{}' is not in the folder", path, m.shards.back().file);
        check_shard(folder, m.shards.back());
    }
    for (const Json& document : json_array(json, "documents", path)) {
        m.documents.push_back({json_get<std::string>(document, "id", path), json_get<std::int64_t>(document, "tokens", path),
                               json_get<std::int64_t>(document, "shard", path)});
        const std::int64_t shard = m.documents.back().shard;
        if (shard < 0 || shard >= std::ssize(m.shards))
            throw_bad_input("{}: document {} is in shard {} of {}", path, m.documents.size() - 1, shard, m.shards.size());
    }
    return m;
}

}  // namespace dflash
