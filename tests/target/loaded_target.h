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
inline std::unique_ptr<Arena> poisoned_arena(const std::vector<BufferSpec>& buffers) {
    auto arena = std::make_unique<Arena>(Device{}, make_plan({"all"}, buffers));
    for (const BufferSpec& buffer : buffers) std::memset(arena->tensor(buffer.name).data, 0xff, buffer.bytes());
    return arena;
}

struct LoadedTarget {
    LoadedTarget(const std::string& folder, const std::optional<TargetForwardSettings>& forward,
                 const std::optional<TargetSessionSettings>& decode)
        : config(read_target_config(folder)) {
        std::vector<BufferSpec> buffers = target_weight_buffers(config, TargetPart::kAll, Device{}, {0, 0});
        const auto append = [&](const std::vector<BufferSpec>& more) { buffers.insert(buffers.end(), more.begin(), more.end()); };
        if (forward) append(target_forward_buffers(config, *forward, {0, 0}, {0, 0}, {0, 0}));
        if (decode) append(target_session_buffers(config, *decode, {0, 0}, {0, 0}));
        arena = poisoned_arena(buffers);
        weights = bind_target_weights(config, TargetPart::kAll, *arena);
        load_target_weights(folder, config, TargetPart::kAll, weights);
        if (forward) model = std::make_unique<TargetModel>(config, weights, *forward, *arena);
        if (decode) session = std::make_unique<TargetSession>(config, weights, *decode, *arena);
    }
    TargetConfig config;
    std::unique_ptr<Arena> arena;
    TargetWeights weights;
    Context context;
    std::unique_ptr<TargetModel> model;
    std::unique_ptr<TargetSession> session;
};

// Columns of one tap as a tensor of their own.
inline std::vector<float> tap_of(const Tensor& taps, std::int64_t index, std::int64_t hidden) {
    std::vector<float> values;
    for (std::int64_t row = 0; row < taps.rows(); ++row) {
        const float* begin = taps.f32() + row * taps.row_elements() + index * hidden;
        values.insert(values.end(), begin, begin + hidden);
    }
    return values;
}

inline std::int32_t argmax(const float* row, std::int64_t n) { return static_cast<std::int32_t>(std::max_element(row, row + n) - row); }

inline bool same_bits(const Tensor& a, const Tensor& b) {
    return a.bytes() == b.bytes() && a.bytes() > 0 && std::memcmp(a.data, b.data, a.bytes()) == 0;
}

}  // namespace dflash::testing
