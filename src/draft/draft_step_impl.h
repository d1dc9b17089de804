// SPDX-License-Identifier: MIT
// What DraftStep holds between forward, loss and backward.
#pragma once

#include "draft/draft_buffers.h"

namespace dflash {

// The weighted rows of a micro-batch, one after another, as the loss takes them.
struct CompactRows {
    std::vector<std::int32_t> rows, teacher_rows, labels;
    std::vector<float> weight;
    void reserve(std::size_t count);
    void list(const AnchorSet& anchors);
};

struct DraftStep::Impl {
    Impl(const DraftSpec& draft, const DraftStepSettings& step_settings, const Arena& arena);

    DraftSpec spec;
    DraftStepSettings settings;
    StepViews views;
    std::int64_t num_live = 0;      // blocks of the last forward
    std::int64_t context_rows = 0;  // and its micro-batch
    CompactRows compact;
    LossStatistics counted;                 // anchors since clear_sums()
    mutable std::vector<double> host_sums;  // room for a download
    std::int64_t rows() const { return num_live * spec.block_size; }

    // The forward of one layer over the live rows. `recomputing`: into backward's memory, from the complete input, no output.
    BlockForwardParams layer_forward(const DraftModel& model, std::size_t layer, bool recomputing) const;
    ContextKeys context_keys(std::size_t layer, bool recomputing) const;
};

}  // namespace dflash
