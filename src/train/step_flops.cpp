// SPDX-License-Identifier: MIT
#include "train/step_flops.h"

#include <algorithm>

namespace dflash {
namespace {

// Pairs of a query slot and a key that it sees, over all live blocks of one layer.
double visible_pairs(const DraftLayerSpec& layer, const AnchorSet& anchors) {
    double pairs = 0;
    for (std::int64_t b = 0; b < anchors.num_live; ++b) {
        const auto block = static_cast<std::size_t>(b);
        const std::int64_t anchor = anchors.anchor_row[block];
        for (std::int64_t k = 0; k < anchors.block_size; ++k) {
            std::int64_t begin = anchors.begin_row[block];
            if (layer.window > 0) begin = std::max(begin, anchor + k - (layer.window - 1));
            pairs += static_cast<double>(std::max<std::int64_t>(anchor - begin, 0) + (layer.causal_block ? k + 1 : anchors.block_size));
        }
    }
    return pairs;
}

}  // namespace

StepFlops count_step_flops(const DraftSpec& spec, std::int64_t tokens, const AnchorSet& anchors, bool with_teacher) {
    const auto real = [](std::int64_t value) { return static_cast<double>(value); };
    const double context_rows = real(tokens);
    const double block_rows = real(anchors.live_rows());
    const double hidden = real(spec.hidden);
    const double query = real(spec.heads * spec.head_dim);
    const double key_value = real(2 * spec.kv_heads * spec.head_dim);
    const double labelled =
        real(std::count_if(anchors.labels.begin(), anchors.labels.end(), [](std::int32_t label) { return label >= 0; }));

    StepFlops flops;
    const double fusion = 2 * context_rows * real(static_cast<std::int64_t>(spec.taps.size())) * hidden * hidden;
    flops.forward += fusion;
    flops.backward += fusion;  // weight gradient alone: the features are frozen
    for (const DraftLayerSpec& layer : spec.layers) {
        const double products =
            2 * context_rows * hidden * key_value + 2 * block_rows * hidden * (2 * query + key_value + 3 * real(spec.intermediate));
        const double scores = 2 * visible_pairs(layer, anchors) * query;
        flops.forward += products + 2 * scores;
        flops.backward += 2 * products + 5 * scores;
    }
    const double head = 2 * labelled * hidden * real(spec.vocabulary);
    flops.loss = 2 * head + (with_teacher ? head : 0);  // logits, and the gradient of the hidden states
    return flops;
}

}  // namespace dflash
