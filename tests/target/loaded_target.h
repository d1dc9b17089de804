// SPDX-License-Identifier: MIT
// A target checkpoint in a poisoned arena, ready to run; and packed batches from plain lists of ids.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/packed_batch.h"
#include "support/device_values.h"
#include "target/target_model.h"
#include "target/target_session.h"
#include "tensor/arena.h"
#include "tensor/plan.h"

namespace dflash::testing {

using Ids = std::vector<std::int32_t>;

inline PackedBatch packed_batch(const std::vector<Ids>& documents) {
    PackedBatch batch;
    batch.document_begin.push_back(0);
    for (std::size_t d = 0; d < documents.size(); ++d) {
        for (std::size_t i = 0; i < documents[d].size(); ++i) {
            batch.ids.push_back(documents[d][i]);
            batch.loss_mask.push_back(1);
            batch.document.push_back(static_cast<std::int32_t>(d));
            batch.position.push_back(static_cast<std::int32_t>(i));
        }
        batch.document_begin.push_back(static_cast<std::int32_t>(batch.ids.size()));
        batch.row_of_document.push_back(static_cast<std::int64_t>(d));
    }
    return batch;
}

// Every byte 0xff: NaN in f32, -1 in i32. Nothing may rely on fresh memory being zero.
inline std::unique_ptr<Arena> poisoned_arena(const std::vector<BufferSpec>& buffers, Device device = {}) {
    auto arena = std::make_unique<Arena>(device, make_plan({"all"}, buffers));
    const Context context(device);
    for (const BufferSpec& buffer : buffers) fill_bytes(context, arena->tensor(buffer.name), 0xff);
    context.synchronize();
    return arena;
}

struct LoadedTarget {
    // The settings' device is replaced by `device`.
    LoadedTarget(const std::string& folder, std::optional<TargetForwardSettings> forward, std::optional<TargetSessionSettings> decode,
                 Device device = {})
        : config(read_target_config(folder)), context(device) {
        if (forward) forward->device = device;
        if (decode) decode->device = device;
        std::vector<BufferSpec> buffers = target_weight_buffers(config, TargetPart::kAll, device, {0, 0});
        const auto append = [&](const std::vector<BufferSpec>& more) { buffers.insert(buffers.end(), more.begin(), more.end()); };
        if (forward) append(target_forward_buffers(config, *forward, {0, 0}, {0, 0}, {0, 0}));
        if (decode) append(target_session_buffers(config, *decode, {0, 0}, {0, 0}));
        arena = poisoned_arena(buffers, device);
        weights = bind_target_weights(config, TargetPart::kAll, *arena);
        load_target_weights(folder, config, TargetPart::kAll, weights);
        if (forward) model = std::make_unique<TargetModel>(config, weights, *forward, *arena);
        if (decode) session = std::make_unique<TargetSession>(config, weights, *decode, *arena);
    }
    std::vector<float> values(const Tensor& tensor) const { return values_of(context, tensor); }

    TargetConfig config;
    std::unique_ptr<Arena> arena;
    TargetWeights weights;
    Context context;
    std::unique_ptr<TargetModel> model;
    std::unique_ptr<TargetSession> session;
};

// Columns of one tap by themselves, of taps with `columns` columns.
inline std::vector<float> tap_of(const std::vector<float>& taps, std::int64_t columns, std::int64_t index, std::int64_t hidden) {
    std::vector<float> values;
    for (auto row = taps.begin(); row != taps.end(); row += columns) {
        values.insert(values.end(), row + index * hidden, row + (index + 1) * hidden);
    }
    return values;
}
inline std::vector<float> tap_of(const Tensor& taps, std::int64_t index, std::int64_t hidden) {
    return tap_of(values_of(Context(), taps), taps.row_elements(), index, hidden);
}

inline std::int32_t argmax(const float* row, std::int64_t n) { return static_cast<std::int32_t>(std::max_element(row, row + n) - row); }

inline bool same_bits(const Tensor& a, const Tensor& b) {
    return a.bytes() == b.bytes() && a.bytes() > 0 && std::memcmp(a.data, b.data, a.bytes()) == 0;
}

}  // namespace dflash::testing
