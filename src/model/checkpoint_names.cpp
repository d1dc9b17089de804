// SPDX-License-Identifier: MIT
#include "model/checkpoint_names.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <string_view>

#include "base/error.h"
#include "model/weight_table.h"

namespace dflash {

namespace {

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
    return std::any_of(prefixes.begin(), prefixes.end(), [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// Also true for a tensor that the index names and its shard lacks: the fault is then reported where that tensor is read.
bool is_named(const SafetensorsFolder& checkpoint, const std::string& name) {
    return checkpoint.missing().count(name) != 0 || checkpoint.find(name) != nullptr;
}

}  // namespace

CheckpointNames::CheckpointNames(const SafetensorsFolder& checkpoint) : head_(kHeadName) {
    for (const char* prefix : {"model.language_model.", "language_model.model.", "model."}) {
        if (!is_named(checkpoint, prefix + std::string(kEmbeddingName))) continue;
        if (!prefix_.empty()) {
            throw_bad_input("{}: holds both '{}{}' and '{}{}'", checkpoint.folder(), prefix_, kEmbeddingName, prefix, kEmbeddingName);
        }
        prefix_ = prefix;
    }
    if (prefix_.empty()) {
        throw_bad_input("{}: no embedding: none of model.{}, model.language_model.{} and language_model.model.{} is there",
                        checkpoint.folder(), kEmbeddingName, kEmbeddingName, kEmbeddingName);
    }
    const std::string nested_head = "language_model." + std::string(kHeadName);
    if (!is_named(checkpoint, head_) && is_named(checkpoint, nested_head)) head_ = nested_head;
}

std::string CheckpointNames::in_file(const std::string& name) const { return name == kHeadName ? head_ : prefix_ + name; }

TensorGroup CheckpointNames::group(const std::string& name_in_file, std::int64_t& layer) const {
    layer = -1;
    if (starts_with_any(name_in_file, {"model.visual.", "visual.", "vision_tower.", "model.vision_tower."})) return TensorGroup::kVision;
    if (starts_with_any(name_in_file, {"mtp.", "model.mtp.", "language_model.mtp.", "model.language_model.mtp."})) return TensorGroup::kMtp;
    if (name_in_file == head_) return TensorGroup::kHead;
    if (!name_in_file.starts_with(prefix_)) return TensorGroup::kOther;
    const std::string_view name = std::string_view(name_in_file).substr(prefix_.size());
    if (name == kEmbeddingName) return TensorGroup::kEmbedding;
    if (name == kFinalNormName) return TensorGroup::kFinalNorm;
    constexpr std::string_view kLayers = "layers.";
    if (!name.starts_with(kLayers)) return TensorGroup::kOther;
    const char* const end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + kLayers.size(), end, layer);
    if (parsed.ec == std::errc() && layer >= 0 && parsed.ptr != end && *parsed.ptr == '.') return TensorGroup::kLayer;
    layer = -1;
    return TensorGroup::kOther;
}

}  // namespace dflash
