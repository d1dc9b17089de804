// SPDX-License-Identifier: MIT
#include "data/epoch_packer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/rng.h"

namespace dflash {

namespace {

constexpr std::size_t kOpenRows = 64;
constexpr std::int64_t kNone = -1;
// Streams of the run's seed.
constexpr std::uint64_t kDocumentOrder = 0xD0C5;
constexpr std::uint64_t kBatchOrder = 0xBA7C;

// Fisher-Yates.
template <typename T>
void shuffle(std::vector<T>& list, std::uint64_t seed, std::uint64_t stream) {
    Philox random(seed, stream);
    for (std::size_t left = list.size(); left > 1; --left) std::swap(list[left - 1], list[random.next_below(left)]);
}

}  // namespace

EpochPacker::EpochPacker(const Dataset& dataset, std::uint64_t seed, std::int64_t token_budget)
    : dataset_(dataset), seed_(seed), budget_(token_budget) {
    if (budget_ < 2) throw_bad_input("--token-budget {}: must be at least 2 tokens", budget_);
    if (dataset.documents() == 0) throw_bad_input("the data set {} holds no documents", dataset.folder());
    const auto documents = static_cast<std::size_t>(dataset.documents());
    order_.resize(documents);
    next_.resize(documents);
    open_.reserve(kOpenRows + 1);
    closed_.reserve(documents);
    documents_.reserve(documents);
    batch_begin_.reserve(documents + 1);
}

void EpochPacker::shuffle_documents() {
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<std::int64_t>(i);
    shuffle(order_, seed_, mix_stream(kDocumentOrder, static_cast<std::uint64_t>(epoch_)));
}

void EpochPacker::place(std::int64_t document) {
    const std::int64_t tokens = std::min(budget_, static_cast<std::int64_t>(dataset_.document(document).ids.size()));
    next_[static_cast<std::size_t>(document)] = kNone;
    Row* best = nullptr;
    for (Row& row : open_) {
        if (row.tokens + tokens <= budget_ && (best == nullptr || row.tokens > best->tokens)) best = &row;
    }
    if (best == nullptr) {
        open_.push_back({tokens, document, document});
        if (open_.size() > kOpenRows) close_fullest();
        return;
    }
    next_[static_cast<std::size_t>(best->last)] = document;
    best->last = document;
    best->tokens += tokens;
}

void EpochPacker::close_fullest() {
    const auto fullest = std::max_element(open_.begin(), open_.end(), [](const Row& a, const Row& b) { return a.tokens < b.tokens; });
    closed_.push_back(*fullest);
    open_.erase(fullest);
}

void EpochPacker::lay_out() {
    shuffle(closed_, seed_, mix_stream(kBatchOrder, static_cast<std::uint64_t>(epoch_)));
    documents_.clear();
    batch_begin_.clear();
    batch_begin_.push_back(0);
    for (const Row& row : closed_) {
        for (std::int64_t d = row.first; d != kNone; d = next_[static_cast<std::size_t>(d)]) documents_.push_back(d);
        batch_begin_.push_back(static_cast<std::int64_t>(documents_.size()));
    }
}

void EpochPacker::pack(std::int64_t epoch) {
    DFLASH_CHECK(epoch >= 0, "epoch {}", epoch);
    epoch_ = epoch;
    open_.clear();
    closed_.clear();
    shuffle_documents();
    for (const std::int64_t document : order_) place(document);
    while (!open_.empty()) close_fullest();
    lay_out();
    DFLASH_CHECK(documents_.size() == order_.size(), "{} of {} documents packed", documents_.size(), order_.size());
}

std::span<const std::int64_t> EpochPacker::documents_of(std::int64_t batch) const {
    DFLASH_CHECK(batch >= 0 && batch < batches(), "micro-batch {} of {}", batch, batches());
    const auto begin = static_cast<std::size_t>(batch_begin_[static_cast<std::size_t>(batch)]);
    const auto end = static_cast<std::size_t>(batch_begin_[static_cast<std::size_t>(batch) + 1]);
    return std::span(documents_).subspan(begin, end - begin);
}

}  // namespace dflash
