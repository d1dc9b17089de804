// SPDX-License-Identifier: MIT
// Which positions of a micro-batch become anchors, and what their blocks are trained on. Pure functions of the batch and a counter-based
// generator keyed by (seed, epoch, micro-batch). Position p is eligible if loss_mask[p] and loss_mask[p+1] are on, both in the document, and
// token p is no end token. min(A, eligible) are drawn uniformly without replacement and sorted; the rest of the capacity is dead.
#pragma once

#include <cstdint>
#include <vector>

#include "data/packed_batch.h"
#include "draft/draft_spec.h"
#include "tensor/tensor.h"

namespace dflash {

// Vectors have room for max_anchors and are reused: filling allocates nothing after the first time.
struct AnchorSet {
    std::int64_t block_size = 0;
    std::int64_t capacity = 0;  // A
    std::int64_t num_live = 0;
    std::int64_t num_eligible = 0;
    std::vector<std::int32_t> begin_row;       // (A) first row of the anchor's document
    std::vector<std::int32_t> anchor_row;      // (A) the anchor's row in the micro-batch
    std::vector<std::int32_t> block_ids;       // (A*W) input tokens: the anchor's, then the mask token
    std::vector<std::int32_t> block_position;  // (A*W) rotary positions p + k
    std::vector<std::int32_t> labels;          // (A*W) token p + k + shift, or -1 where the slot has no weight
    std::vector<std::int32_t> teacher_row;     // (A*W) row whose target distribution predicts the label (label's row - 1), or -1
    std::vector<float> weight;                 // (A*W) decay weight, 0 where unweighted (D-PACE multiplies later)
    double weight_sum = 0;                     // over weight

    std::int64_t live_rows() const { return num_live * block_size; }
};

struct AnchorSettings {
    std::int64_t max_anchors = 512;
    std::uint64_t seed = 0;
    double decay_gamma = 0;        // 0: the default of the block size (4, 5, 7 at W = 8, 10, 16, linear between)
    bool uniform_weights = false;  // all weighted slots 1 (D-PACE computes its own factor)
};
double default_decay_gamma(std::int64_t block_size);

void draw_anchors(const PackedBatch& batch, const DraftSpec& spec, const AnchorSettings& settings,
                  const std::vector<std::int32_t>& end_tokens, AnchorSet& anchors);
// The same for given rows (tests, parity of training and decoding): each row is used, eligible or not.
void place_anchors(const PackedBatch& batch, const DraftSpec& spec, const AnchorSettings& settings, const std::vector<std::int32_t>& rows,
                   AnchorSet& anchors);

}  // namespace dflash
