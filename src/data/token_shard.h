// SPDX-License-Identifier: MIT
// One shard of a data set: the tokens and masks of many documents, laid one after another. On disk a safetensors file with
// input_ids I32 (N), loss_mask U8 (N), offsets I64 (documents + 1), row_ids U8 (bytes of all ids of rows), row_id_offsets I64 (documents + 1).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"

namespace dflash {

// Read-only; owned by a ShardBuffer or a mapped file.
struct ShardView {
    std::span<const std::int32_t> ids;
    std::span<const std::uint8_t> loss_mask;
    std::span<const std::int64_t> offsets;
    std::string_view row_ids;
    std::span<const std::int64_t> row_id_offsets;
    std::int64_t documents() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
};

class ShardBuffer {
public:
    void add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> loss_mask, std::string_view row_id);
    std::int64_t tokens() const { return static_cast<std::int64_t>(ids_.size()); }
    std::int64_t documents() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
    ShardView view() const { return {ids_, loss_mask_, offsets_, row_ids_, row_id_offsets_}; }
    void write(const std::string& path) const;
    void clear();

private:
    std::vector<std::int32_t> ids_;
    std::vector<std::uint8_t> loss_mask_;
    std::vector<std::int64_t> offsets_{0};
    std::string row_ids_;
    std::vector<std::int64_t> row_id_offsets_{0};
};

// Checks dtypes, shapes, offsets and masks; Error(kBadInput) naming the file otherwise.
ShardView view_shard(const SafetensorsFile& file);

}  // namespace dflash
