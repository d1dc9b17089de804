// SPDX-License-Identifier: MIT
// What DraftStep holds between forward, loss and backward.
#pragma once

#include "draft/draft_buffers.h"

namespace dflash {

struct DraftStep::Impl {
    DraftSpec spec;
    DraftStepSettings settings;
    StepViews views;
    std::int64_t num_live = 0;      // blocks of the last forward
    std::int64_t context_rows = 0;  // and its micro-batch
    std::int64_t rows() const { return num_live * spec.block_size; }

    // The forward of one layer over the live rows. `recomputing`: into backward's memory, from the complete input, no output.
    BlockForwardParams layer_forward(const DraftModel& model, std::size_t layer, bool recomputing) const;
    ContextKeys context_keys(std::size_t layer, bool recomputing) const;
};

}  // namespace dflash
