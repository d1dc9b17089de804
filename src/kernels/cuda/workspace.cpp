// SPDX-License-Identifier: MIT
#include "kernels/cuda/workspace.h"

#include "kernels/backends.h"

namespace dflash::cuda {

std::size_t linear_workspace_bytes(const std::vector<LinearShape>& shapes) { return shapes.empty() ? 0 : kMatmulWorkspaceBytes; }

std::size_t rms_norm_backward_workspace_bytes(std::int64_t columns) {
    return kRmsNormPartials * static_cast<std::size_t>(columns) * sizeof(float);
}

std::size_t head_norm_rope_backward_workspace_bytes(std::int64_t head_dim) {
    return kHeadNormPartials * static_cast<std::size_t>(head_dim) * sizeof(float);
}

std::size_t gradient_scale_workspace_bytes() { return kSquarePartials * sizeof(double); }

// A segment's chunks, and two sets of states for the document that goes on in the next segment.
std::size_t delta_rule_workspace_bytes(const DeltaRuleParams& shapes) {
    const auto heads = static_cast<std::size_t>(shapes.value_heads);
    return heads *
           (kDeltaSegmentChunks * kDeltaPreparedBytes + 2 * static_cast<std::size_t>(shapes.key_dim * shapes.value_dim) * sizeof(float));
}

// Results of the splits in f32, with a sum of exponentials each.
std::size_t causal_attention_workspace_bytes(std::int64_t rows, std::int64_t key_rows, std::int64_t heads, std::int64_t head_dim) {
    const std::int64_t splits = attention_splits(1, key_rows);
    if (splits == 1) return 0;
    return static_cast<std::size_t>(splits * std::min(rows, kAttentionSplitRows) * heads * (head_dim + 1)) * sizeof(float);
}

}  // namespace dflash::cuda
