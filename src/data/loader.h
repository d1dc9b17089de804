// SPDX-License-Identifier: MIT
// Packing and prefetching. The order of micro-batches is a pure function of (data set, seed, epoch, token budget): documents are shuffled
// by epoch, packed into rows of at most `token_budget` tokens (epoch_packer.h), longer documents cut to it and counted.
// Rank r of R takes micro-batches r, r + R, ...; every rank gets the same number (empty ones fill up).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "data/dataset.h"
#include "data/packed_batch.h"

namespace dflash {

// Documents (rows of the data set) of each micro-batch of an epoch, in order. Every document appears exactly once.
std::vector<std::vector<std::int64_t>> pack_epoch(const Dataset& dataset, std::uint64_t seed, std::int64_t epoch,
                                                  std::int64_t token_budget);

// Fills `batch` from documents of the data set; documents over the budget are cut to it.
void fill_batch(const Dataset& dataset, std::span<const std::int64_t> documents, std::int64_t token_budget, PackedBatch& batch);

// What an epoch loses to the budget: tokens of the data set = tokens of its micro-batches + tokens cut.
struct CutCount {
    std::int64_t documents = 0;
    std::int64_t tokens = 0;
};
CutCount count_cut(const Dataset& dataset, std::int64_t token_budget);

struct LoaderSettings {
    std::uint64_t seed = 0;
    std::int64_t token_budget = 8192;
    int rank = 0;
    int ranks = 1;
    int prefetch = 2;
};

// A background thread keeps `prefetch` batches ready. All storage, batches and orders of epochs, is reserved by the constructor.
// The data set must outlive the loader. Used from one thread.
class Loader {
public:
    // `companion`, if given, is called on that thread with each batch it has filled and the batch's place in the ring, 0 .. `prefetch`, to make
    // ready what goes with it. A place is filled again once next() has given the batch after it.
    using Companion = std::function<void(const PackedBatch&, std::size_t place)>;
    Loader(const Dataset& dataset, const LoaderSettings& settings, Companion companion = {});
    ~Loader();
    std::int64_t batches_in_epoch(std::int64_t epoch) const;  // of this rank
    // Continue with this rank's micro-batch `cursor` of `epoch` (for resume); a cursor at an epoch's end means the next one's start.
    void seek(std::int64_t epoch, std::int64_t cursor);
    // The next micro-batch; valid until the next call. Runs on into the next epoch without end. Rethrows a thread's error.
    const PackedBatch& next();
    // Of the batch that next() gave last.
    std::size_t place() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace dflash
