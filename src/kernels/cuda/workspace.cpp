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

}  // namespace dflash::cuda
