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

// One stored row of C elements to f32.
void convert_row(const char* from, bool is_bf16, std::int64_t elements, float* to) {
    if (!is_bf16) {
        std::memcpy(to, from, static_cast<std::size_t>(elements) * sizeof(float));
        return;
    }
    for (std::int64_t i = 0; i < elements; ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, from + i * 2, sizeof(bits));
        to[i] = bf16_to_float(bits);
    }
}

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
    std::int64_t element_bytes = 4;

    Impl(const std::string& folder, const Dataset& data, const LoaderSettings& loader_settings, const StoredFeatureSettings& wanted);
    void check(const std::string& folder, const Dataset& data) const;
    const char* find(const std::string& name, std::int64_t row) const;
    void copy_document(std::int64_t row, std::int64_t first, std::int64_t tokens) const;
};

StoredFeatures::Impl::Impl(const std::string& folder, const Dataset& data, const LoaderSettings& loader_settings,
                           const StoredFeatureSettings& wanted)
    : manifest(read_features_manifest(folder)), settings(wanted), loader(data, loader_settings) {
    check(folder, data);
    element_bytes = manifest.dtype == "bf16" ? 2 : 4;
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

void StoredFeatures::Impl::copy_document(std::int64_t row, std::int64_t first, std::int64_t tokens) const {
    const StoredDocument& document = documents[static_cast<std::size_t>(row)];
    const std::int64_t hidden = manifest.hidden;
    const std::int64_t taps = std::ssize(settings.taps);
    const bool is_bf16 = element_bytes == 2;
#pragma omp parallel for schedule(static)
    for (std::int64_t token = 0; token < tokens; ++token) {
        const std::int64_t from = token * hidden * element_bytes;
        for (std::int64_t k = 0; k < taps; ++k) {
            convert_row(document.states[static_cast<std::size_t>(k)] + from, is_bf16, hidden,
                        settings.taps_out.f32() + ((first + token) * taps + k) * hidden);
        }
        if (settings.final_out.defined()) {
            convert_row(document.states.back() + from, is_bf16, hidden, settings.final_out.f32() + (first + token) * hidden);
        }
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

FeatureBatch StoredFeatures::next(const Context& /*context*/) {
    const PackedBatch& batch = impl_->loader.next();
    for (std::int64_t document = 0; document < batch.documents(); ++document) {
        const auto d = static_cast<std::size_t>(document);
        impl_->copy_document(batch.row_of_document[d], batch.document_begin[d], batch.document_begin[d + 1] - batch.document_begin[d]);
    }
    FeatureBatch result{&batch, {}};
    result.features.taps = impl_->settings.taps_out.slice_rows(0, batch.tokens());
    if (impl_->settings.final_out.defined()) result.features.final_state = impl_->settings.final_out.slice_rows(0, batch.tokens());
    return result;
}

}  // namespace dflash
