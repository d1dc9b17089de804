// SPDX-License-Identifier: MIT
#include "target/stored_features.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/bf16.h"
#include "base/check.h"
#include "io/safetensors.h"

namespace dflash {
namespace {

constexpr std::int64_t kStagedBytes = std::int64_t{4} << 20;

template <typename To, typename From, typename Convert>
void convert_elements(const char* from, std::int64_t elements, char* to, Convert convert) {
    for (std::int64_t i = 0; i < elements; ++i) {
        From value;
        std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof(From)), sizeof(From));
        const To converted = convert(value);
        std::memcpy(to + i * static_cast<std::int64_t>(sizeof(To)), &converted, sizeof(To));
    }
}

// One stored row of C elements.
void convert_row(const char* from, DType stored, std::int64_t elements, DType wanted, char* to) {
    if (stored == wanted) {
        std::memcpy(to, from, static_cast<std::size_t>(elements) * dtype_bytes(wanted));
    } else if (wanted == DType::kF32) {
        convert_elements<float, std::uint16_t>(from, elements, to, bf16_to_float);
    } else {
        convert_elements<std::uint16_t, float>(from, elements, to, float_to_bf16);
    }
}

// Rows of a planned buffer that are made on the host and uploaded a few megabytes at a time.
class RowUploader {
public:
    explicit RowUploader(const Tensor& to) : to_(to) {
        if (!to.defined()) return;
        row_bytes_ = to.row_elements() * static_cast<std::int64_t>(dtype_bytes(to.dtype));
        piece_ = std::max<std::int64_t>(1, kStagedBytes / row_bytes_);
        staged_.resize(static_cast<std::size_t>(piece_ * row_bytes_));
    }
    // make_row(i, memory) writes row first + i, for i in 0 .. count - 1.
    template <typename MakeRow>
    void upload(const Context& context, std::int64_t first, std::int64_t count, const MakeRow& make_row) {
        for (std::int64_t begin = 0; begin < count; begin += piece_) {
            const std::int64_t rows = std::min(piece_, count - begin);
#pragma omp parallel for schedule(static)
            for (std::int64_t row = 0; row < rows; ++row) make_row(begin + row, staged_.data() + row * row_bytes_);
            context.upload(staged_.data(), to_.slice_rows(first + begin, rows));
        }
    }

private:
    Tensor to_;
    std::int64_t row_bytes_ = 0, piece_ = 1;
    std::vector<char> staged_;
};

// The stored states of one document, in the order of the wanted ones.
struct StoredDocument {
    std::vector<const char*> states;  // data of each wanted layer, then of the final state if wanted
    std::int64_t shard = 0;
};

}  // namespace

struct StoredFeatures::Impl {
    FeaturesManifest manifest;
    StoredFeatureSettings settings;
    std::vector<SafetensorsFile> shards;
    std::vector<StoredDocument> documents;
    Loader loader;
    DType stored_dtype = DType::kF32;
    RowUploader taps_rows, final_rows;

    Impl(const std::string& folder, const Dataset& data, const LoaderSettings& loader_settings, const StoredFeatureSettings& wanted);
    void check(const std::string& folder, const Dataset& data) const;
    const char* find(const std::string& name, std::int64_t row) const;
    void copy_document(const Context& context, std::int64_t row, std::int64_t first, std::int64_t tokens);
};

StoredFeatures::Impl::Impl(const std::string& folder, const Dataset& data, const LoaderSettings& loader_settings,
                           const StoredFeatureSettings& wanted)
    : manifest(read_features_manifest(folder)),
      settings(wanted),
      loader(data, loader_settings),
      taps_rows(wanted.taps_out),
      final_rows(wanted.final_out) {
    check(folder, data);
    stored_dtype = manifest.dtype == "bf16" ? DType::kBF16 : DType::kF32;
    shards.reserve(manifest.shards.size());
    for (const FeaturesManifest::Shard& shard : manifest.shards) shards.emplace_back(folder + "/" + shard.file);
    documents.resize(manifest.documents.size());
    for (std::size_t row = 0; row < documents.size(); ++row) {
        const std::string name = std::to_string(row);
        documents[row].shard = manifest.documents[row].shard;
        for (const std::int64_t tap : settings.taps)
            documents[row].states.push_back(find(hidden_tensor_name(name, tap), static_cast<std::int64_t>(row)));
        if (settings.final_out.defined()) documents[row].states.push_back(find(final_tensor_name(name), static_cast<std::int64_t>(row)));
    }
}

void StoredFeatures::Impl::check(const std::string& folder, const Dataset& data) const {
    if (manifest.target_fingerprint != settings.target_fingerprint) {
        throw_bad_input("{} holds features of another target (fingerprint {}, this one has {}): make them again with `dflash features`",
                        folder, manifest.target_fingerprint, settings.target_fingerprint);
    }
    if (manifest.data_fingerprint != data.fingerprint() || std::ssize(manifest.documents) != data.documents()) {
        throw_bad_input("{}: the data set in it is not the one its features were made from", folder);
    }
    for (std::int64_t row = 0; row < data.documents(); ++row) {
        const std::int64_t tokens = manifest.documents[static_cast<std::size_t>(row)].tokens;
        if (tokens != std::ssize(data.document(row).ids))
            throw_bad_input("{}: document {} has {} tokens, its features {}", folder, row, data.document(row).ids.size(), tokens);
    }
    for (const std::int64_t tap : settings.taps) {
        if (std::find(manifest.layers.begin(), manifest.layers.end(), tap) == manifest.layers.end()) {
            throw_bad_input("{} holds layers {}, the drafter taps {}: layer {} is missing; make the features with --layers {}", folder,
                            fmt::join(manifest.layers, ","), fmt::join(settings.taps, ","), tap, fmt::join(settings.taps, ","));
        }
    }
    if (settings.final_out.defined() && !manifest.has_final) {
        throw_bad_input("{} holds no final states, which --loss kl needs: make the features with --final", folder);
    }
    if (manifest.dtype != "f32" && manifest.dtype != "bf16") throw_bad_input("{}: dtype '{}' is not f32 or bf16", folder, manifest.dtype);
}

const char* StoredFeatures::Impl::find(const std::string& name, std::int64_t row) const {
    const FeaturesManifest::Document& document = manifest.documents[static_cast<std::size_t>(row)];
    const SafetensorsFile& shard = shards[static_cast<std::size_t>(document.shard)];
    const SafetensorsEntry* entry = shard.find(name);
    if (entry == nullptr) throw_bad_input("{}: tensor '{}' is missing", shard.path(), name);
    const std::vector<std::int64_t> expected = {document.tokens, manifest.hidden};
    if (entry->shape != expected || entry->dtype != (manifest.dtype == "bf16" ? "BF16" : "F32")) {
        throw_bad_input("{}: tensor '{}' is {} of shape ({}), expected {} of shape ({})", shard.path(), name, entry->dtype,
                        fmt::join(entry->shape, ", "), manifest.dtype, fmt::join(expected, ", "));
    }
    return entry->data;
}

void StoredFeatures::Impl::copy_document(const Context& context, std::int64_t row, std::int64_t first, std::int64_t tokens) {
    const StoredDocument& document = documents[static_cast<std::size_t>(row)];
    const std::int64_t hidden = manifest.hidden;
    const std::int64_t stored_row = hidden * static_cast<std::int64_t>(dtype_bytes(stored_dtype));
    const DType wanted = settings.taps_out.dtype;
    const std::int64_t wanted_row = hidden * static_cast<std::int64_t>(dtype_bytes(wanted));
    taps_rows.upload(context, first, tokens, [&](std::int64_t token, char* to) {
        for (std::size_t k = 0; k < settings.taps.size(); ++k) {
            convert_row(document.states[k] + token * stored_row, stored_dtype, hidden, wanted,
                        to + static_cast<std::int64_t>(k) * wanted_row);
        }
    });
    if (settings.final_out.defined()) {
        final_rows.upload(context, first, tokens, [&](std::int64_t token, char* to) {
            convert_row(document.states.back() + token * stored_row, stored_dtype, hidden, wanted, to);
        });
    }
    shards[static_cast<std::size_t>(document.shard)].drop_pages();
}

StoredFeatures::StoredFeatures(const std::string& folder, const Dataset& data, const LoaderSettings& loader,
                               const StoredFeatureSettings& settings)
    : impl_(std::make_unique<Impl>(folder, data, loader, settings)) {
    const FeaturesManifest& manifest = impl_->manifest;
    DFLASH_CHECK(
        settings.taps_out.rows() >= loader.token_budget && settings.taps_out.row_elements() == std::ssize(settings.taps) * manifest.hidden,
        "features of {} layers of {} do not fit their buffer {}", settings.taps.size(), manifest.hidden,
        settings.taps_out.shape.to_string());
}

StoredFeatures::~StoredFeatures() = default;

std::int64_t StoredFeatures::batches_in_epoch(std::int64_t epoch) const { return impl_->loader.batches_in_epoch(epoch); }

void StoredFeatures::seek(std::int64_t epoch, std::int64_t cursor) { impl_->loader.seek(epoch, cursor); }

FeatureBatch StoredFeatures::next(const Context& context) {
    const PackedBatch& batch = impl_->loader.next();
    for (std::int64_t document = 0; document < batch.documents(); ++document) {
        const auto d = static_cast<std::size_t>(document);
        impl_->copy_document(context, batch.row_of_document[d], batch.document_begin[d],
                             batch.document_begin[d + 1] - batch.document_begin[d]);
    }
    FeatureBatch result{&batch, {}};
    result.features.taps = impl_->settings.taps_out.slice_rows(0, batch.tokens());
    if (impl_->settings.final_out.defined()) result.features.final_state = impl_->settings.final_out.slice_rows(0, batch.tokens());
    return result;
}

}  // namespace dflash
