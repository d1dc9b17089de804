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

constexpr int kSlots = 2;  // one is on its way to the GPU while the next is being filled

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

// A micro-batch's features in page-locked memory, on their way to a GPU.
struct HostSlot {
    HostSlot(const TargetFeatures& like, cuda::OwnedEvent event)
        : taps(Device{}, like.taps.dtype, like.taps.shape, HostMemory::kPinned), sent(std::move(event)) {
        if (like.final_state.defined())
            final_state = DeviceBuffer(Device{}, like.final_state.dtype, like.final_state.shape, HostMemory::kPinned);
    }
    TargetFeatures rows(std::int64_t tokens) const { return TargetFeatures{taps, final_state}.rows(0, tokens); }

    DeviceBuffer taps, final_state;
    cuda::OwnedEvent sent;
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
    FeatureBuffer& buffer;
    std::vector<SafetensorsFile> shards;
    std::vector<StoredDocument> documents;
    DType stored_dtype = DType::kF32;
    std::vector<HostSlot> slots;  // for a GPU
    Loader loader;                // its thread fills the slots, so it ends first

    Impl(const std::string& folder, const Dataset& data, const LoaderSettings& loader_settings, const StoredFeatureSettings& wanted,
         FeatureBuffer& to);
    bool on_cpu() const { return buffer.device().type == DeviceType::kCpu; }
    void check(const std::string& folder, const Dataset& data) const;
    const char* find(const std::string& name, std::int64_t row) const;
    void fill_slot(const PackedBatch& batch, std::size_t place);
    void read(const PackedBatch& batch, const TargetFeatures& to) const;
    void read_document(std::int64_t row, const TargetFeatures& to) const;
};

// Which batches the loader's thread has ready goes by its ring; for a GPU a slot belongs to each place of it.
LoaderSettings ring_of(LoaderSettings loader, Device device) {
    if (device.type == DeviceType::kCuda) loader.prefetch = kSlots - 1;
    return loader;
}

StoredFeatures::Impl::Impl(const std::string& folder, const Dataset& data, const LoaderSettings& loader_settings,
                           const StoredFeatureSettings& wanted, FeatureBuffer& to)
    : manifest(read_features_manifest(folder)),
      settings(wanted),
      buffer(to),
      loader(
          data, ring_of(loader_settings, to.device()),
          on_cpu() ? Loader::Companion{} : [this](const PackedBatch& batch, std::size_t place) { fill_slot(batch, place); }) {
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
        if (buffer.has_final_state()) documents[row].states.push_back(find(final_tensor_name(name), static_cast<std::int64_t>(row)));
    }
    const Tensor& taps = buffer.memory().taps;
    DFLASH_CHECK(taps.rows() >= loader_settings.token_budget && taps.row_elements() == std::ssize(settings.taps) * manifest.hidden,
                 "features of {} layers of {} do not fit their buffer {}", settings.taps.size(), manifest.hidden, taps.shape.to_string());
    for (int slot = 0; slot < kSlots && !on_cpu(); ++slot)
        slots.emplace_back(buffer.memory(), cuda::OwnedEvent(cuda::create_event(buffer.device())));
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
    if (buffer.has_final_state() && !manifest.has_final) {
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

void StoredFeatures::Impl::fill_slot(const PackedBatch& batch, std::size_t place) {
    const HostSlot& slot = slots[place];
    cuda::select_device(buffer.device());
    cuda::wait(slot.sent.get());
    read(batch, slot.rows(batch.tokens()));
}

// `to` is host memory.
void StoredFeatures::Impl::read(const PackedBatch& batch, const TargetFeatures& to) const {
    for (std::size_t d = 0; d < batch.row_of_document.size(); ++d) {
        const std::int64_t first = batch.document_begin[d];
        const std::int64_t tokens = batch.document_begin[d + 1] - first;
        read_document(batch.row_of_document[d], to.rows(first, tokens));
    }
}

void StoredFeatures::Impl::read_document(std::int64_t row, const TargetFeatures& to) const {
    const StoredDocument& document = documents[static_cast<std::size_t>(row)];
    const std::size_t taps = settings.taps.size();
    const std::int64_t hidden = manifest.hidden;
    const std::int64_t stored_row = hidden * static_cast<std::int64_t>(dtype_bytes(stored_dtype));
    const DType wanted = to.taps.dtype;
    const std::int64_t wanted_row = hidden * static_cast<std::int64_t>(dtype_bytes(wanted));
    auto* const taps_out = static_cast<char*>(to.taps.data);
    auto* const final_out = static_cast<char*>(to.final_state.data);
#pragma omp parallel for schedule(static)
    for (std::int64_t token = 0; token < to.taps.rows(); ++token) {
        char* out = taps_out + token * static_cast<std::int64_t>(taps) * wanted_row;
        for (std::size_t k = 0; k < taps; ++k, out += wanted_row)
            convert_row(document.states[k] + token * stored_row, stored_dtype, hidden, wanted, out);
        if (final_out == nullptr) continue;
        convert_row(document.states[taps] + token * stored_row, stored_dtype, hidden, wanted, final_out + token * wanted_row);
    }
    shards[static_cast<std::size_t>(document.shard)].drop_pages();
}

std::size_t stored_features_pinned_bytes(Device device, std::size_t feature_bytes) {
    return device.type == DeviceType::kCuda ? kSlots * feature_bytes : 0;
}

StoredFeatures::StoredFeatures(const std::string& folder, const Dataset& data, const LoaderSettings& loader,
                               const StoredFeatureSettings& settings, FeatureBuffer& buffer)
    : impl_(std::make_unique<Impl>(folder, data, loader, settings, buffer)) {}

StoredFeatures::~StoredFeatures() = default;

std::int64_t StoredFeatures::batches_in_epoch(std::int64_t epoch) const { return impl_->loader.batches_in_epoch(epoch); }

void StoredFeatures::seek(std::int64_t epoch, std::int64_t cursor) { impl_->loader.seek(epoch, cursor); }

FeatureBatch StoredFeatures::next(const Context& context) {
    const PackedBatch& batch = impl_->loader.next();
    const TargetFeatures features = impl_->buffer.memory().rows(0, batch.tokens());
    if (impl_->on_cpu()) {
        impl_->read(batch, features);
    } else {
        const HostSlot& slot = impl_->slots[impl_->loader.place()];
        impl_->buffer.send(context, slot.rows(batch.tokens()), slot.sent.get());
    }
    return {&batch, features};
}

void StoredFeatures::release(const Context& context) {
    if (!impl_->on_cpu()) impl_->buffer.release(context);
}

}  // namespace dflash
