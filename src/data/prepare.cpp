// SPDX-License-Identifier: MIT
// Writes a prepared data set: everything goes into a folder beside the final one, which takes its name when complete.
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "data/content_hash.h"
#include "data/dataset.h"
#include "data/manifest.h"
#include "data/row_encoder.h"
#include "data/token_shard.h"
#include "io/atomic_file.h"

namespace dflash {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kShardTokens = std::int64_t{1} << 24;  // 84 MB
constexpr const char* kStagingMark = ".partial-";             // followed by the process id

fs::path without_last_slash(const std::string& path) {
    const fs::path clean = fs::path(path).lexically_normal();
    return clean.has_filename() ? clean : clean.parent_path();
}

bool is_process_alive(const std::string& id) {
    pid_t process = 0;
    const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), process);
    return error == std::errc() && end == id.data() + id.size() && process > 0 && (::kill(process, 0) == 0 || errno == EPERM);
}

// What killed runs for the same folder left behind.
void remove_leftovers(const fs::path& out) {
    const std::string prefix = out.filename().string() + kStagingMark;
    for (const auto& entry : fs::directory_iterator(out.parent_path())) {
        const std::string name = entry.path().filename().string();
        if (!name.starts_with(prefix) || is_process_alive(name.substr(prefix.size()))) continue;
        log_info("[data] removing {}, left by a run that did not end", entry.path().string());
        fs::remove_all(entry.path());
    }
}

// The folder that is filled; removed again unless published.
class Staging {
public:
    explicit Staging(const std::string& out) : out_(fs::absolute(without_last_slash(out))) {
        check_publishable(out);
        if (fs::exists(out_) && !is_prepared_folder(out_.string()) && !(fs::is_directory(out_) && fs::is_empty(out_))) {
            throw_bad_input("{}: exists and is no prepared data set: choose another --out or remove it", out);
        }
        path_ = out_.string() + kStagingMark + std::to_string(::getpid());
        std::error_code error;
        fs::create_directories(out_.parent_path(), error);
        if (!error) remove_leftovers(out_);
        if (!error) fs::create_directory(path_, error);
        if (error) throw_failed("{}: cannot be written beside: {}", out, error.message());
    }
    ~Staging() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;
    std::string file(const std::string& name) const { return path_ + "/" + name; }
    void publish() const { publish_folder(path_, out_.string()); }

private:
    fs::path out_;
    std::string path_;
};

class ShardWriter {
public:
    explicit ShardWriter(const Staging& staging) : staging_(staging) {}

    void add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> loss_mask, std::string_view row_id) {
        buffer_.add(ids, loss_mask, row_id);
        hash_.add(ids, loss_mask);
        if (buffer_.tokens() >= kShardTokens) flush();
    }
    void finish(DatasetManifest& manifest) {
        if (buffer_.documents() > 0) flush();
        manifest.shards = shards_;
        manifest.fingerprint = hash_.hex();
    }

private:
    void flush() {
        const std::string name = fmt::format("shard-{:05}.safetensors", shards_.size());
        const std::string path = staging_.file(name);
        buffer_.write(path);
        shards_.push_back({name, static_cast<std::int64_t>(fs::file_size(path)), crc32c_file(path), buffer_.documents(), buffer_.tokens()});
        buffer_.clear();
    }

    const Staging& staging_;
    ShardBuffer buffer_;
    ContentHash hash_;
    std::vector<DatasetManifest::Shard> shards_;
};

}  // namespace

PrepareReport prepare_dataset(const PrepareSettings& settings) {
    RowEncoder encoder(settings);
    const Staging staging(settings.out);
    ShardWriter writer(staging);
    DatasetManifest manifest;
    manifest.report = encoder.run([&](auto ids, auto loss_mask, auto row_id) { writer.add(ids, loss_mask, row_id); });
    manifest.chat_template = settings.chat_template;
    manifest.max_length = settings.max_length;
    manifest.tokenizer_fingerprint = encoder.tokenizer_fingerprint();
    writer.finish(manifest);
    write_file_atomically(staging.file(kManifestName), manifest_text(manifest));
    staging.publish();
    return manifest.report;
}

}  // namespace dflash
