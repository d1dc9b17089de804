// SPDX-License-Identifier: MIT
#include "data/manifest.h"

#include <filesystem>

#include "base/error.h"
#include "io/json.h"

namespace dflash {

namespace {

constexpr const char* kFormat = "dflash-data";
constexpr std::int64_t kVersion = 1;

DatasetManifest::Shard read_shard(const Json& entry, const std::string& where) {
    DatasetManifest::Shard shard;
    shard.file = json_get<std::string>(entry, "file", where);
    if (shard.file.empty() || shard.file.find('/') != std::string::npos) throw_bad_input("{}: '{}' is no shard name", where, shard.file);
    shard.bytes = json_get<std::int64_t>(entry, "bytes", where);
    shard.crc32c = json_get<std::int64_t>(entry, "crc32c", where);
    shard.documents = json_get<std::int64_t>(entry, "documents", where);
    shard.tokens = json_get<std::int64_t>(entry, "tokens", where);
    return shard;
}

}  // namespace

std::string manifest_text(const DatasetManifest& manifest) {
    nlohmann::ordered_json out = {{"format", kFormat},
                                  {"version", kVersion},
                                  {"template", template_name(manifest.chat_template.kind)},
                                  {"thinking", manifest.chat_template.thinking},
                                  {"system", manifest.chat_template.system},
                                  {"max_length", manifest.max_length},
                                  {"tokenizer_fingerprint", manifest.tokenizer_fingerprint},
                                  {"fingerprint", manifest.fingerprint},
                                  {"rows_in", manifest.report.rows_in},
                                  {"rows_used", manifest.report.rows_used},
                                  {"rows_truncated", manifest.report.rows_truncated},
                                  {"control_text_rows", manifest.report.control_text_rows},
                                  {"refused", manifest.report.refused},
                                  {"tokens", manifest.report.tokens},
                                  {"supervised_tokens", manifest.report.supervised_tokens},
                                  {"shards", nlohmann::ordered_json::array()}};
    for (const auto& shard : manifest.shards) {
        out["shards"].push_back({{"file", shard.file},
                                 {"bytes", shard.bytes},
                                 {"crc32c", shard.crc32c},
                                 {"documents", shard.documents},
                                 {"tokens", shard.tokens}});
    }
    return out.dump(1) + "\n";
}

DatasetManifest read_manifest(const std::string& folder) {
    const std::string where = folder + "/" + kManifestName;
    if (!std::filesystem::exists(where))
        throw_bad_input("{}: no prepared data set there (no {}); see `dflash prepare`", folder, kManifestName);
    const Json file = read_json_file(where);
    if (json_get<std::string>(file, "format", where) != kFormat) throw_bad_input("{}: is not the manifest of a data set", where);
    const auto version = json_get<std::int64_t>(file, "version", where);
    if (version != kVersion)
        throw_bad_input("{}: version {} is not supported (version {} is): prepare the data again", where, version, kVersion);
    DatasetManifest manifest;
    manifest.chat_template.kind = resolve_template(json_get<std::string>(file, "template", where), folder);
    manifest.chat_template.thinking = json_get<bool>(file, "thinking", where);
    manifest.chat_template.system = json_get<std::string>(file, "system", where);
    manifest.max_length = json_get<std::int64_t>(file, "max_length", where);
    manifest.tokenizer_fingerprint = json_get<std::string>(file, "tokenizer_fingerprint", where);
    manifest.fingerprint = json_get<std::string>(file, "fingerprint", where);
    manifest.report.rows_in = json_get<std::int64_t>(file, "rows_in", where);
    manifest.report.rows_used = json_get<std::int64_t>(file, "rows_used", where);
    manifest.report.rows_truncated = json_get<std::int64_t>(file, "rows_truncated", where);
    manifest.report.control_text_rows = json_get<std::int64_t>(file, "control_text_rows", where);
    manifest.report.tokens = json_get<std::int64_t>(file, "tokens", where);
    manifest.report.supervised_tokens = json_get<std::int64_t>(file, "supervised_tokens", where);
    const auto refused = file.find("refused");
    if (refused == file.end() || !refused->is_object()) throw_bad_input("{}: key 'refused' must be an object", where);
    for (const auto& [reason, rows] : refused->items()) {
        if (!rows.is_number_integer()) throw_bad_input("{}: refused rows must be counted in integers", where);
        manifest.report.refused[reason] = rows.get<std::int64_t>();
    }
    const auto shards = file.find("shards");
    if (shards == file.end() || !shards->is_array() || shards->empty()) throw_bad_input("{}: key 'shards' must be a filled list", where);
    for (const Json& shard : *shards) manifest.shards.push_back(read_shard(shard, where));
    return manifest;
}

bool is_prepared_folder(const std::string& folder) {
    try {
        (void)read_manifest(folder);
        return true;
    } catch (const Error&) {
        return false;
    }
}

}  // namespace dflash
