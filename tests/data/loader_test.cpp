// SPDX-License-Identifier: MIT
#include "data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "support/chats.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace dflash {
namespace {

using testing::ready_line;
using testing::refuses;
using testing::TemporaryFolder;

constexpr const char* kTarget = DFLASH_FIXTURES "/tiny-qwen3.5";

// Document i has lengths[i] tokens from 100 x (i + 1) on, so that each token tells where it came from; the first is the prompt.
Dataset documents_of(const std::vector<std::int64_t>& lengths) {
    const TemporaryFolder folder;
    std::string text;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        text += ready_line(static_cast<std::int32_t>(100 * (i + 1)), lengths[i], lengths[i] > 2 ? 1 : 0, "doc" + std::to_string(i)) + "\n";
    }
    PrepareSettings settings;
    settings.inputs = {folder.write("rows.jsonl", text)};
    settings.target = folder.path();  // no config, no tokenizer: any id goes
    settings.keep_unsupervised = true;
    return Dataset::from_jsonl(settings);
}

const Dataset& chats() {
    static const Dataset dataset = [] {
        PrepareSettings settings;
        settings.inputs = {DFLASH_FIXTURES "/data/chat_heldout.jsonl"};
        settings.target = kTarget;
        return Dataset::from_jsonl(settings);
    }();
    return dataset;
}

struct Snapshot {
    std::vector<std::int32_t> ids;
    std::vector<std::int64_t> rows;
    std::int64_t epoch, index;
    bool operator==(const Snapshot&) const = default;
};

Snapshot take(Loader& loader) {
    const PackedBatch& batch = loader.next();
    return {batch.ids, batch.row_of_document, batch.epoch, batch.index};
}

std::vector<Snapshot> take(Loader& loader, std::int64_t count) {
    std::vector<Snapshot> taken;
    for (std::int64_t i = 0; i < count; ++i) taken.push_back(take(loader));
    return taken;
}

TEST(Packing, EveryDocumentOnceAnEpochWithinTheBudget) {
    for (const std::int64_t budget : {2, 17, 300, 1024, 8192}) {
        const auto batches = pack_epoch(chats(), 3, 0, budget);
        std::vector<std::int64_t> seen;
        for (const auto& batch : batches) {
            std::int64_t tokens = 0;
            for (const std::int64_t document : batch) {
                seen.push_back(document);
                tokens += std::min(budget, static_cast<std::int64_t>(chats().document(document).ids.size()));
            }
            EXPECT_LE(tokens, budget);
            EXPECT_FALSE(batch.empty());
        }
        std::sort(seen.begin(), seen.end());
        std::vector<std::int64_t> all(static_cast<std::size_t>(chats().documents()));
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(seen, all) << budget;
    }
}

TEST(Packing, IsAPureFunctionOfSeedAndEpoch) {
    EXPECT_EQ(pack_epoch(chats(), 3, 5, 1024), pack_epoch(chats(), 3, 5, 1024));
    EXPECT_NE(pack_epoch(chats(), 3, 5, 1024), pack_epoch(chats(), 3, 6, 1024));
    EXPECT_NE(pack_epoch(chats(), 3, 5, 1024), pack_epoch(chats(), 4, 5, 1024));
}

TEST(Packing, FillsItsRows) {
    PrepareSettings settings;
    settings.inputs = {DFLASH_FIXTURES "/data/regen_train.jsonl"};
    settings.target = kTarget;
    const Dataset dataset = Dataset::from_jsonl(settings);
    for (const std::int64_t budget : {1024, 8192}) {
        const auto batches = pack_epoch(dataset, 1, 0, budget);
        const auto capacity = static_cast<double>(budget) * static_cast<double>(batches.size());
        EXPECT_GT(static_cast<double>(dataset.tokens()) / capacity, 0.95) << budget;
    }
}

// Lengths around the budget, and far beyond: cut and counted, tokens in = packed + cut.
TEST(Packing, CutsLongDocumentsAndCountsThem) {
    const Dataset dataset = documents_of({59, 60, 61, 120, 121, 1000, 1});
    const CutCount cut = count_cut(dataset, 60);
    EXPECT_EQ(cut.documents, 4);
    EXPECT_EQ(cut.tokens, 1 + 60 + 61 + 940);
    std::int64_t packed = 0;
    PackedBatch batch;
    for (const auto& documents : pack_epoch(dataset, 0, 0, 60)) {
        fill_batch(dataset, documents, 60, batch);
        packed += batch.tokens();
    }
    EXPECT_EQ(packed + cut.tokens, dataset.tokens());
    EXPECT_EQ(count_cut(dataset, 1000).tokens, 0);
    EXPECT_TRUE(refuses([&] { pack_epoch(dataset, 0, 0, 1); }, {"--token-budget 1"}));
}

TEST(Packing, KeepsDocumentsApart) {
    const Dataset dataset = documents_of({7, 3, 20});
    PackedBatch batch;
    fill_batch(dataset, std::vector<std::int64_t>{2, 0, 1}, 32, batch);
    EXPECT_EQ(batch.tokens(), 30);
    EXPECT_EQ(batch.documents(), 3);
    EXPECT_EQ(batch.document_begin, (std::vector<std::int32_t>{0, 20, 27, 30}));
    EXPECT_EQ(batch.row_of_document, (std::vector<std::int64_t>{2, 0, 1}));
    for (std::size_t i = 0; i < batch.ids.size(); ++i) {
        const auto d = static_cast<std::size_t>(batch.document[i]);
        const std::int32_t first = batch.document_begin[d];
        EXPECT_EQ(batch.position[i], static_cast<std::int32_t>(i) - first);
        EXPECT_EQ(batch.ids[i], 100 * (static_cast<std::int32_t>(batch.row_of_document[d]) + 1) + batch.position[i]);
        EXPECT_EQ(batch.loss_mask[i], batch.position[i] > 0 ? 1 : 0);
    }
}

TEST(Loader, GoesThroughTheEpochsInOrder) {
    Loader loader(chats(), {.seed = 7, .token_budget = 1024, .rank = 0, .ranks = 1, .prefetch = 2});
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        const auto expected = pack_epoch(chats(), 7, epoch, 1024);
        ASSERT_EQ(loader.batches_in_epoch(epoch), static_cast<std::int64_t>(expected.size()));
        for (std::size_t i = 0; i < expected.size(); ++i) {
            const Snapshot got = take(loader);
            EXPECT_EQ(got.rows, expected[i]);
            EXPECT_EQ(got.epoch, epoch);
            EXPECT_EQ(got.index, static_cast<std::int64_t>(i));
        }
    }
}

TEST(Loader, ContinuesAnywhereAsIfNeverStopped) {
    const LoaderSettings settings{.seed = 7, .token_budget = 4096, .rank = 0, .ranks = 1, .prefetch = 3};
    Loader straight(chats(), settings);
    const std::int64_t first = straight.batches_in_epoch(0);
    const std::int64_t second = straight.batches_in_epoch(1);
    const std::vector<Snapshot> all = take(straight, first + second + 3);
    Loader resumed(chats(), settings);
    for (const std::int64_t start : {std::int64_t{1}, first - 1, first, first + 1, std::int64_t{0}, first + second}) {
        const bool in_first = start <= first;  // the end of an epoch is a place in it
        const bool in_second = !in_first && start <= first + second;
        resumed.seek(in_first ? 0 : in_second ? 1 : 2, in_first ? start : in_second ? start - first : start - first - second);
        for (std::size_t i = static_cast<std::size_t>(start); i < std::min<std::size_t>(all.size(), static_cast<std::size_t>(start) + 5);
             ++i) {
            EXPECT_EQ(take(resumed), all[i]) << start << " " << i;
        }
    }
}

// The ranks together make the micro-batches of one rank, in the same order; all get the same number.
TEST(Loader, RanksShareTheSameOrder) {
    for (const auto& [lengths, ranks] : std::vector<std::pair<std::vector<std::int64_t>, int>>{
             {{31, 2, 2, 2, 30, 3, 29}, 2}, {{10}, 2}, {{10, 20, 30, 32, 32}, 3}, {{5, 5}, 8}}) {
        const Dataset dataset = documents_of(lengths);
        const auto expected = pack_epoch(dataset, 5, 0, 32);
        std::vector<std::vector<std::int64_t>> got;
        std::set<std::int64_t> counts;
        std::vector<std::unique_ptr<Loader>> loaders;
        for (int rank = 0; rank < ranks; ++rank) {
            loaders.push_back(std::make_unique<Loader>(
                dataset, LoaderSettings{.seed = 5, .token_budget = 32, .rank = rank, .ranks = ranks, .prefetch = 2}));
            counts.insert(loaders.back()->batches_in_epoch(0));
        }
        ASSERT_EQ(counts.size(), 1U);
        for (std::int64_t i = 0; i < *counts.begin(); ++i) {
            for (int rank = 0; rank < ranks; ++rank) {
                const Snapshot batch = take(*loaders[static_cast<std::size_t>(rank)]);
                EXPECT_EQ(batch.epoch, 0);
                EXPECT_EQ(batch.index, i * ranks + rank);
                const bool fills_up = batch.index >= static_cast<std::int64_t>(expected.size());
                EXPECT_EQ(batch.ids.empty(), fills_up);
                if (!fills_up) got.push_back(batch.rows);
            }
        }
        EXPECT_EQ(got, expected);
        for (auto& loader : loaders) EXPECT_EQ(take(*loader).epoch, 1);
    }
}

TEST(Loader, AnEmptyBatchHasNoDocuments) {
    const Dataset dataset = documents_of({10});
    Loader loader(dataset, {.seed = 0, .token_budget = 32, .rank = 1, .ranks = 2, .prefetch = 1});
    const PackedBatch& batch = loader.next();
    EXPECT_EQ(batch.tokens(), 0);
    EXPECT_EQ(batch.documents(), 0);
    EXPECT_EQ(batch.document_begin, (std::vector<std::int32_t>{0}));
}

// What the companion made of a batch, at the batch's place, is there when the batch is, and stays until the next one is asked for.
TEST(Loader, TheCompanionKeepsStepWithTheBatches) {
    for (const int prefetch : {1, 3}) {
        const LoaderSettings settings{.seed = 5, .token_budget = 512, .rank = 0, .ranks = 1, .prefetch = prefetch};
        std::vector<std::vector<std::int32_t>> made(static_cast<std::size_t>(prefetch) + 1);
        Loader loader(chats(), settings, [&](const PackedBatch& batch, std::size_t place) { made.at(place) = batch.ids; });
        Loader plain(chats(), settings);
        for (int round = 0; round < 2; ++round) {
            for (int i = 0; i < 20; ++i) {
                const PackedBatch& batch = loader.next();
                EXPECT_EQ(batch.ids, plain.next().ids);
                EXPECT_EQ(made[loader.place()], batch.ids);
            }
            loader.seek(1, 2);
            plain.seek(1, 2);
        }
    }
}

TEST(Loader, RethrowsErrorsOfItsThread) {
    Loader loader(chats(), {.seed = 7, .token_budget = 1024, .rank = 0, .ranks = 1, .prefetch = 2});
    loader.seek(0, 100000);
    EXPECT_TRUE(testing::throws(ErrorKind::kFailed, [&] { loader.next(); }, {"micro-batch 100000"}));
    EXPECT_TRUE(testing::throws(ErrorKind::kFailed, [&] { loader.next(); }, {"micro-batch 100000"}));
    loader.seek(0, 0);
    EXPECT_EQ(take(loader).index, 0);
}

TEST(Loader, EndsCleanlyAtAnyTime) {
    for (int taken = 0; taken < 5; ++taken) {
        Loader loader(chats(), {.seed = 7, .token_budget = 512, .rank = 0, .ranks = 1, .prefetch = 4});
        for (int i = 0; i < taken; ++i) EXPECT_GT(loader.next().tokens(), 0);
    }
}

}  // namespace
}  // namespace dflash
