// SPDX-License-Identifier: MIT
#include "data/dataset.h"

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "base/error.h"
#include "data/content_hash.h"
#include "data/manifest.h"
#include "data/row_encoder.h"
#include "data/token_shard.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"

namespace dflash {

struct Dataset::Impl {
    std::string folder;  // empty when made in memory
    DatasetManifest manifest;
    std::vector<SafetensorsFile> files;
    ShardBuffer buffer;
    std::vector<ShardView> shards;
    std::vector<std::int64_t> first_document;  // (shards + 1)

    void open_shard(const DatasetManifest::Shard& expected);
    void add(const ShardView& shard);
    // The shard that holds a document, and its place there.
    std::pair<const ShardView*, std::size_t> locate(std::int64_t row) const;
};

void Dataset::Impl::add(const ShardView& shard) {
    if (first_document.empty()) first_document.push_back(0);
    shards.push_back(shard);
    first_document.push_back(first_document.back() + shard.documents());
}

void Dataset::Impl::open_shard(const DatasetManifest::Shard& expected) {
    const std::string path = folder + "/" + expected.file;
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path, error);
    if (error) throw_bad_input("{}: cannot be read: {}; prepare the data again", path, error.message());
    if (static_cast<std::int64_t>(bytes) != expected.bytes) {
        throw_bad_input("{}: has {} bytes, the manifest says {}; prepare the data again", path, bytes, expected.bytes);
    }
    if (static_cast<std::int64_t>(crc32c_file(path)) != expected.crc32c) {
        throw_bad_input("{}: differs from what was prepared (checksum); prepare the data again", path);
    }
    files.emplace_back(path);
    const ShardView shard = view_shard(files.back());
    if (shard.documents() != expected.documents || static_cast<std::int64_t>(shard.ids.size()) != expected.tokens) {
        throw_bad_input("{}: holds {} documents of {} tokens, the manifest says {} of {}", path, shard.documents(), shard.ids.size(),
                        expected.documents, expected.tokens);
    }
    add(shard);
}

std::pair<const ShardView*, std::size_t> Dataset::Impl::locate(std::int64_t row) const {
    DFLASH_CHECK(row >= 0 && row < first_document.back(), "document {} of {}", row, first_document.back());
    const auto next = std::upper_bound(first_document.begin(), first_document.end(), row);
    const auto shard = static_cast<std::size_t>(next - first_document.begin()) - 1;
    return {&shards[shard], static_cast<std::size_t>(row - first_document[shard])};
}

Dataset::Dataset(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Dataset::Dataset(const std::string& folder) : impl_(std::make_unique<Impl>()) {
    impl_->folder = folder;
    impl_->manifest = read_manifest(folder);
    for (const auto& shard : impl_->manifest.shards) impl_->open_shard(shard);
    if (tokens() != impl_->manifest.report.tokens) {
        throw_bad_input("{}: its shards hold {} tokens, its manifest says {}", folder, tokens(), impl_->manifest.report.tokens);
    }
}

Dataset Dataset::from_jsonl(const PrepareSettings& settings) {
    auto impl = std::make_unique<Impl>();
    RowEncoder encoder(settings);
    ContentHash hash;
    impl->manifest.report = encoder.run([&](auto ids, auto loss_mask, auto row_id) {
        impl->buffer.add(ids, loss_mask, row_id);
        hash.add(ids, loss_mask);
    });
    impl->manifest.chat_template = settings.chat_template;
    impl->manifest.max_length = settings.max_length;
    impl->manifest.tokenizer_fingerprint = encoder.tokenizer_fingerprint();
    impl->manifest.fingerprint = hash.hex();
    impl->add(impl->buffer.view());
    return Dataset(std::move(impl));
}

Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;
Dataset& Dataset::operator=(Dataset&&) noexcept = default;

std::int64_t Dataset::documents() const { return impl_->first_document.back(); }

std::int64_t Dataset::tokens() const {
    std::int64_t tokens = 0;
    for (const ShardView& shard : impl_->shards) tokens += static_cast<std::int64_t>(shard.ids.size());
    return tokens;
}

DocumentView Dataset::document(std::int64_t row) const {
    const auto [shard, i] = impl_->locate(row);
    const auto begin = static_cast<std::size_t>(shard->offsets[i]);
    const auto length = static_cast<std::size_t>(shard->offsets[i + 1]) - begin;
    return {shard->ids.subspan(begin, length), shard->loss_mask.subspan(begin, length)};
}

std::string Dataset::document_id(std::int64_t row) const {
    const auto [shard, i] = impl_->locate(row);
    const auto begin = static_cast<std::size_t>(shard->row_id_offsets[i]);
    return std::string(shard->row_ids.substr(begin, static_cast<std::size_t>(shard->row_id_offsets[i + 1]) - begin));
}

ChatTemplate Dataset::chat_template() const { return impl_->manifest.chat_template; }
const PrepareReport& Dataset::report() const { return impl_->manifest.report; }
std::string Dataset::tokenizer_fingerprint() const { return impl_->manifest.tokenizer_fingerprint; }
std::string Dataset::fingerprint() const { return impl_->manifest.fingerprint; }
std::string Dataset::folder() const { return impl_->folder; }

}  // namespace dflash
