// SPDX-License-Identifier: MIT
#include "data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "data/epoch_packer.h"

namespace dflash {

namespace {

void reserve_batch(const Dataset& dataset, std::int64_t token_budget, PackedBatch& batch) {
    const auto tokens = static_cast<std::size_t>(token_budget);
    const auto documents = static_cast<std::size_t>(std::min(token_budget, dataset.documents()));
    batch.ids.reserve(tokens);
    batch.loss_mask.reserve(tokens);
    batch.document.reserve(tokens);
    batch.position.reserve(tokens);
    batch.document_begin.reserve(documents + 1);
    batch.row_of_document.reserve(documents);
}

std::int64_t share_of_rank(std::int64_t batches, int ranks) { return (batches + ranks - 1) / ranks; }

}  // namespace

std::vector<std::vector<std::int64_t>> pack_epoch(const Dataset& dataset, std::uint64_t seed, std::int64_t epoch,
                                                  std::int64_t token_budget) {
    EpochPacker packer(dataset, seed, token_budget);
    packer.pack(epoch);
    std::vector<std::vector<std::int64_t>> batches;
    for (std::int64_t i = 0; i < packer.batches(); ++i) {
        const auto documents = packer.documents_of(i);
        batches.emplace_back(documents.begin(), documents.end());
    }
    return batches;
}

void fill_batch(const Dataset& dataset, std::span<const std::int64_t> documents, std::int64_t token_budget, PackedBatch& batch) {
    batch.ids.clear();
    batch.loss_mask.clear();
    batch.document.clear();
    batch.position.clear();
    batch.document_begin.assign(1, 0);
    batch.row_of_document.assign(documents.begin(), documents.end());
    for (std::size_t d = 0; d < documents.size(); ++d) {
        const DocumentView view = dataset.document(documents[d]);
        const auto length = std::min(view.ids.size(), static_cast<std::size_t>(token_budget));
        batch.ids.insert(batch.ids.end(), view.ids.begin(), view.ids.begin() + static_cast<std::ptrdiff_t>(length));
        batch.loss_mask.insert(batch.loss_mask.end(), view.loss_mask.begin(), view.loss_mask.begin() + static_cast<std::ptrdiff_t>(length));
        for (std::size_t p = 0; p < length; ++p) {
            batch.document.push_back(static_cast<std::int32_t>(d));
            batch.position.push_back(static_cast<std::int32_t>(p));
        }
        batch.document_begin.push_back(static_cast<std::int32_t>(batch.ids.size()));
    }
    DFLASH_CHECK(batch.tokens() <= token_budget, "{} tokens in a row of {}", batch.tokens(), token_budget);
}

CutCount count_cut(const Dataset& dataset, std::int64_t token_budget) {
    CutCount cut;
    for (std::int64_t row = 0; row < dataset.documents(); ++row) {
        const std::int64_t over = static_cast<std::int64_t>(dataset.document(row).ids.size()) - token_budget;
        if (over <= 0) continue;
        ++cut.documents;
        cut.tokens += over;
    }
    return cut;
}

// The batches are a ring: the consumer holds one, the thread fills the others.
struct Loader::Impl {
    Impl(const Dataset& data, const LoaderSettings& loader_settings, Companion with_batch)
        : dataset(data),
          settings(loader_settings),
          companion(std::move(with_batch)),
          packer(data, loader_settings.seed, loader_settings.token_budget),
          counter(data, loader_settings.seed, loader_settings.token_budget) {}

    const Dataset& dataset;
    const LoaderSettings settings;
    const Companion companion;
    EpochPacker packer;                                                // the thread's
    EpochPacker counter;                                               // for batches_in_epoch()
    std::vector<std::pair<std::int64_t, std::int64_t>> batches_known;  // epoch, batches over all ranks
    std::vector<PackedBatch> ring;

    std::thread thread;
    std::mutex mutex;
    std::condition_variable changed;
    std::int64_t epoch = 0, cursor = 0;  // where the thread starts
    std::int64_t num_filled = 0, num_taken = 0;
    bool must_stop = false;
    std::exception_ptr error;

    std::size_t place(std::int64_t number) const { return static_cast<std::size_t>(number) % ring.size(); }
    void start();
    void stop();
    void fill_forever();
    void fill_next();
};

Loader::Loader(const Dataset& dataset, const LoaderSettings& settings, Companion companion) {
    if (settings.ranks < 1 || settings.rank < 0 || settings.rank >= settings.ranks || settings.prefetch < 1) {
        throw_failed("loader: rank {} of {}, {} batches ahead", settings.rank, settings.ranks, settings.prefetch);
    }
    impl_ = std::make_unique<Impl>(dataset, settings, std::move(companion));
    impl_->ring.resize(static_cast<std::size_t>(settings.prefetch) + 1);
    for (PackedBatch& batch : impl_->ring) reserve_batch(dataset, settings.token_budget, batch);
    const CutCount cut = count_cut(dataset, settings.token_budget);
    if (cut.documents > 0) {
        log_info("[data] {} documents are longer than the token budget of {}: {} of {} tokens are cut", cut.documents,
                 settings.token_budget, cut.tokens, dataset.tokens());
    }
}

Loader::~Loader() { impl_->stop(); }

std::int64_t Loader::batches_in_epoch(std::int64_t epoch) const {
    auto& known = impl_->batches_known;
    auto entry = std::find_if(known.begin(), known.end(), [epoch](const auto& pair) { return pair.first == epoch; });
    if (entry == known.end()) {
        impl_->counter.pack(epoch);
        entry = known.insert(known.end(), {epoch, impl_->counter.batches()});
    }
    return share_of_rank(entry->second, impl_->settings.ranks);
}

void Loader::seek(std::int64_t epoch, std::int64_t cursor) {
    impl_->stop();
    impl_->epoch = epoch;
    impl_->cursor = cursor;
}

const PackedBatch& Loader::next() {
    if (!impl_->thread.joinable()) impl_->start();
    std::unique_lock lock(impl_->mutex);
    impl_->changed.wait(lock, [&] { return impl_->num_filled > impl_->num_taken || impl_->error; });
    if (impl_->num_filled == impl_->num_taken) std::rethrow_exception(impl_->error);
    const PackedBatch& batch = impl_->ring[impl_->place(impl_->num_taken++)];
    impl_->changed.notify_all();
    return batch;
}

std::size_t Loader::place() const { return impl_->place(impl_->num_taken - 1); }

void Loader::Impl::start() {
    num_filled = num_taken = 0;
    must_stop = false;
    error = nullptr;
    thread = std::thread([this] { fill_forever(); });
}

void Loader::Impl::stop() {
    if (!thread.joinable()) return;
    {
        const std::lock_guard lock(mutex);
        must_stop = true;
    }
    changed.notify_all();
    thread.join();
}

void Loader::Impl::fill_forever() {
    const auto capacity = static_cast<std::int64_t>(ring.size());
    try {
        while (true) {
            {
                std::unique_lock lock(mutex);
                // The batch taken last is still being read.
                changed.wait(lock, [&] { return must_stop || num_filled - std::max<std::int64_t>(num_taken - 1, 0) < capacity; });
                if (must_stop) return;
            }
            fill_next();
            const std::lock_guard lock(mutex);
            ++num_filled;
            changed.notify_all();
        }
    } catch (...) {
        const std::lock_guard lock(mutex);
        error = std::current_exception();
        changed.notify_all();
    }
}

void Loader::Impl::fill_next() {
    if (packer.epoch() != epoch) packer.pack(epoch);
    DFLASH_CHECK(cursor >= 0 && cursor <= share_of_rank(packer.batches(), settings.ranks), "micro-batch {} of {} in epoch {}", cursor,
                 share_of_rank(packer.batches(), settings.ranks), epoch);
    if (cursor == share_of_rank(packer.batches(), settings.ranks)) {
        cursor = 0;
        packer.pack(++epoch);
    }
    const std::int64_t index = settings.rank + cursor * settings.ranks;
    PackedBatch& batch = ring[place(num_filled)];
    const auto documents = index < packer.batches() ? packer.documents_of(index) : std::span<const std::int64_t>{};
    fill_batch(dataset, documents, settings.token_budget, batch);
    batch.epoch = epoch;
    batch.index = index;
    if (companion) companion(batch, place(num_filled));
    ++cursor;
}

}  // namespace dflash
