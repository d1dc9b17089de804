// SPDX-License-Identifier: MIT
#include "data/token_shard.h"

#include <algorithm>

#include "base/error.h"

namespace dflash {

namespace {

template <typename T>
std::span<const T> read_entry(const SafetensorsFile& file, const char* name, const char* dtype) {
    const SafetensorsEntry* entry = file.find(name);
    if (entry == nullptr) throw_bad_input("{}: no tensor '{}'; not a token shard", file.path(), name);
    if (entry->dtype != dtype || entry->shape.size() != 1) {
        throw_bad_input("{}: tensor '{}' must be {} of one dimension; not a token shard", file.path(), name, dtype);
    }
    if (reinterpret_cast<std::uintptr_t>(entry->data) % alignof(T) != 0) {
        throw_bad_input("{}: tensor '{}' is not aligned to its elements", file.path(), name);
    }
    return {reinterpret_cast<const T*>(entry->data), static_cast<std::size_t>(entry->elements())};
}

// 0 = first, rising strictly (or weakly) to `last`.
void check_offsets(std::span<const std::int64_t> offsets, std::size_t last, bool strictly, const std::string& what) {
    if (offsets.empty() || offsets.front() != 0 || offsets.back() != static_cast<std::int64_t>(last)) {
        throw_bad_input("{} do not span the data", what);
    }
    for (std::size_t i = 1; i < offsets.size(); ++i) {
        if (offsets[i] < offsets[i - 1] + (strictly ? 1 : 0)) throw_bad_input("{} do not rise at document {}", what, i - 1);
    }
}

}  // namespace

void ShardBuffer::add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> loss_mask, std::string_view row_id) {
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    loss_mask_.insert(loss_mask_.end(), loss_mask.begin(), loss_mask.end());
    offsets_.push_back(static_cast<std::int64_t>(ids_.size()));
    row_ids_ += row_id;
    row_id_offsets_.push_back(static_cast<std::int64_t>(row_ids_.size()));
}

void ShardBuffer::write(const std::string& path) const {
    const auto size = [](const auto& list) { return std::vector<std::int64_t>{static_cast<std::int64_t>(list.size())}; };
    SafetensorsWriter writer(path, {{"input_ids", "I32", size(ids_)},
                                    {"loss_mask", "U8", size(loss_mask_)},
                                    {"offsets", "I64", size(offsets_)},
                                    {"row_ids", "U8", size(row_ids_)},
                                    {"row_id_offsets", "I64", size(row_id_offsets_)}});
    const auto write_list = [&](const char* name, const auto& list) { writer.write(name, list.data(), list.size() * sizeof(list[0])); };
    write_list("input_ids", ids_);
    write_list("loss_mask", loss_mask_);
    write_list("offsets", offsets_);
    write_list("row_ids", row_ids_);
    write_list("row_id_offsets", row_id_offsets_);
    writer.finish();
}

void ShardBuffer::clear() {
    ids_.clear();
    loss_mask_.clear();
    offsets_.resize(1);
    row_ids_.clear();
    row_id_offsets_.resize(1);
}

ShardView view_shard(const SafetensorsFile& file) {
    ShardView view;
    view.ids = read_entry<std::int32_t>(file, "input_ids", "I32");
    view.loss_mask = read_entry<std::uint8_t>(file, "loss_mask", "U8");
    view.offsets = read_entry<std::int64_t>(file, "offsets", "I64");
    const auto row_ids = read_entry<std::uint8_t>(file, "row_ids", "U8");
    view.row_ids = {reinterpret_cast<const char*>(row_ids.data()), row_ids.size()};
    view.row_id_offsets = read_entry<std::int64_t>(file, "row_id_offsets", "I64");
    if (view.loss_mask.size() != view.ids.size()) throw_bad_input("{}: input_ids and loss_mask differ in length", file.path());
    if (view.row_id_offsets.size() != view.offsets.size()) throw_bad_input("{}: the two lists of offsets differ in length", file.path());
    check_offsets(view.offsets, view.ids.size(), true, file.path() + ": offsets");
    check_offsets(view.row_id_offsets, view.row_ids.size(), false, file.path() + ": row_id_offsets");
    if (std::any_of(view.ids.begin(), view.ids.end(), [](std::int32_t id) { return id < 0; })) {
        throw_bad_input("{}: a token id is negative", file.path());
    }
    if (std::any_of(view.loss_mask.begin(), view.loss_mask.end(), [](std::uint8_t flag) { return flag > 1; })) {
        throw_bad_input("{}: loss_mask holds something else than 0 and 1", file.path());
    }
    return view;
}

}  // namespace dflash
