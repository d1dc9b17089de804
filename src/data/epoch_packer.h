// SPDX-License-Identifier: MIT
// The order of micro-batches of one epoch: documents are shuffled, then each goes into the fullest of a few open rows that still has room
// for it (best fit within a window); when too many rows are open, the fullest is closed. At last the rows are shuffled.
// A pure function of (documents' lengths, seed, epoch, token budget). All storage is reserved by the constructor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/dataset.h"

namespace dflash {

class EpochPacker {
public:
    // `dataset` must outlive it. Error(kBadInput) for an empty data set or a budget below 2 tokens.
    EpochPacker(const Dataset& dataset, std::uint64_t seed, std::int64_t token_budget);

    void pack(std::int64_t epoch);
    std::int64_t epoch() const { return epoch_; }  // -1 before the first pack()
    std::int64_t batches() const { return static_cast<std::int64_t>(batch_begin_.size()) - 1; }
    std::span<const std::int64_t> documents_of(std::int64_t batch) const;

private:
    struct Row {
        std::int64_t tokens;
        std::int64_t first, last;  // documents, linked by next_
    };
    void shuffle_documents();
    void place(std::int64_t document);
    void close_fullest();
    void lay_out();

    const Dataset& dataset_;
    std::uint64_t seed_;
    std::int64_t budget_;
    std::int64_t epoch_ = -1;
    std::vector<std::int64_t> order_;        // (documents) shuffled
    std::vector<std::int64_t> next_;         // (documents) the next document in the same row, or -1
    std::vector<Row> open_, closed_;         // at most kOpenRows; at most (documents)
    std::vector<std::int64_t> documents_;    // (documents) row by row: the result
    std::vector<std::int64_t> batch_begin_;  // (batches + 1) into documents_
};

}  // namespace dflash
