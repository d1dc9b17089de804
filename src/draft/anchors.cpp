// SPDX-License-Identifier: MIT
#include "draft/anchors.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "base/rng.h"
#include "kernels/loss_sums.h"

namespace dflash {
namespace {

constexpr std::uint64_t kAnchorStream = 0x616e63686f7273ULL;

// Sizes every vector for the capacity; nothing is allocated when that was done before. All blocks start dead.
void reset(const DraftSpec& spec, const AnchorSettings& settings, AnchorSet& anchors) {
    DFLASH_CHECK(settings.max_anchors >= 0, "{} anchors", settings.max_anchors);
    anchors.block_size = spec.block_size;
    anchors.capacity = settings.max_anchors;
    anchors.num_live = 0;
    anchors.num_eligible = 0;
    anchors.weight_sum = 0;
    const auto blocks = static_cast<std::size_t>(anchors.capacity);
    const auto slots = static_cast<std::size_t>(anchors.capacity * anchors.block_size);
    anchors.begin_row.assign(blocks, 0);
    anchors.anchor_row.assign(blocks, 0);
    anchors.block_ids.assign(slots, spec.mask_token);
    anchors.block_position.assign(slots, 0);
    anchors.labels.assign(slots, -1);
    anchors.teacher_row.assign(slots, -1);
    anchors.weight.assign(slots, 0.0F);
}

// The weight of a label by its distance from the anchor in tokens, 1..W: the same for every block, so exp() is called W times a batch.
class LabelWeights {
public:
    LabelWeights(const DraftSpec& spec, const AnchorSettings& settings) {
        const double gamma = settings.decay_gamma > 0 ? settings.decay_gamma : default_decay_gamma(spec.block_size);
        for (std::size_t ahead = 1; ahead < by_distance_.size(); ++ahead) {
            by_distance_[ahead] = settings.uniform_weights ? 1.0F : static_cast<float>(std::exp(-static_cast<double>(ahead - 1) / gamma));
        }
    }
    float at(std::int64_t ahead) const { return by_distance_[static_cast<std::size_t>(ahead)]; }

private:
    std::array<float, kMaxBlockSize + 1> by_distance_{};
};

// Fills the next live block. Labels are prefix-closed: the first token that is not the assistant's own ends them.
void add_block(const PackedBatch& batch, const DraftSpec& spec, const LabelWeights& weights, std::int64_t row, AnchorSet& anchors) {
    const auto block = static_cast<std::size_t>(anchors.num_live++);
    const auto at = static_cast<std::size_t>(row);
    const auto document = static_cast<std::size_t>(batch.document[at]);
    const std::int64_t end = batch.document_begin[document + 1];
    anchors.begin_row[block] = batch.document_begin[document];
    anchors.anchor_row[block] = static_cast<std::int32_t>(row);
    const std::size_t first = block * static_cast<std::size_t>(spec.block_size);
    anchors.block_ids[first] = batch.ids[at];
    bool supervised = true;
    for (std::int64_t k = 0; k < spec.block_size; ++k) {
        const std::size_t slot = first + static_cast<std::size_t>(k);
        anchors.block_position[slot] = batch.position[at] + static_cast<std::int32_t>(k);
        const std::int64_t ahead = k + spec.alignment_shift;  // tokens after the anchor
        const std::int64_t label_row = row + ahead;
        if (ahead == 0) continue;
        supervised = supervised && label_row < end && batch.loss_mask[static_cast<std::size_t>(label_row)] != 0;
        if (!supervised) continue;
        anchors.labels[slot] = batch.ids[static_cast<std::size_t>(label_row)];
        anchors.teacher_row[slot] = static_cast<std::int32_t>(label_row - 1);
        anchors.weight[slot] = weights.at(ahead);
        anchors.weight_sum += static_cast<double>(anchors.weight[slot]);
    }
}

bool is_eligible(const PackedBatch& batch, const std::vector<std::int32_t>& end_tokens, std::size_t row) {
    return row + 1 < batch.ids.size() && batch.document[row + 1] == batch.document[row] && batch.loss_mask[row] != 0 &&
           batch.loss_mask[row + 1] != 0 && std::find(end_tokens.begin(), end_tokens.end(), batch.ids[row]) == end_tokens.end();
}

}  // namespace

double default_decay_gamma(std::int64_t block_size) {
    const auto w = static_cast<double>(block_size);
    return block_size <= 10 ? 4.0 + (w - 8.0) / 2.0 : 5.0 + (w - 10.0) / 3.0;
}

void draw_anchors(const PackedBatch& batch, const DraftSpec& spec, const AnchorSettings& settings,
                  const std::vector<std::int32_t>& end_tokens, AnchorSet& anchors) {
    reset(spec, settings, anchors);
    const std::size_t rows = batch.ids.size();
    for (std::size_t row = 0; row < rows; ++row) anchors.num_eligible += is_eligible(batch, end_tokens, row) ? 1 : 0;
    // Selection sampling (Knuth, TAOCP vol. 2, 3.4.2, algorithm S): every subset of the wanted size is equally likely, found in row order.
    const LabelWeights weights(spec, settings);
    Philox rng(settings.seed, mix_stream(kAnchorStream, static_cast<std::uint64_t>(batch.epoch), static_cast<std::uint64_t>(batch.index)));
    std::int64_t wanted = std::min(settings.max_anchors, anchors.num_eligible);
    std::int64_t remaining = anchors.num_eligible;
    for (std::size_t row = 0; row < rows && wanted > 0; ++row) {
        if (!is_eligible(batch, end_tokens, row)) continue;
        if (rng.next_below(static_cast<std::uint64_t>(remaining--)) >= static_cast<std::uint64_t>(wanted)) continue;
        --wanted;
        add_block(batch, spec, weights, static_cast<std::int64_t>(row), anchors);
    }
}

void place_anchors(const PackedBatch& batch, const DraftSpec& spec, const AnchorSettings& settings, const std::vector<std::int32_t>& rows,
                   AnchorSet& anchors) {
    reset(spec, settings, anchors);
    DFLASH_CHECK(static_cast<std::int64_t>(rows.size()) <= settings.max_anchors, "{} anchors for a capacity of {}", rows.size(),
                 settings.max_anchors);
    anchors.num_eligible = static_cast<std::int64_t>(rows.size());
    const LabelWeights weights(spec, settings);
    for (const std::int32_t row : rows) {
        DFLASH_CHECK(row >= 0 && row < batch.tokens(), "anchor row {} of {} rows", row, batch.tokens());
        add_block(batch, spec, weights, row, anchors);
    }
}

}  // namespace dflash
