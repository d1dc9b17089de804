// SPDX-License-Identifier: MIT
// A program of its own: it replaces the global allocation functions to count large blocks.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "data/loader.h"

namespace {

constexpr std::size_t kLarge = std::size_t{64} << 10;
std::atomic<std::int64_t> num_large{0};

void* counted(std::size_t bytes) {
    if (bytes >= kLarge) ++num_large;
    void* block = std::malloc(bytes == 0 ? 1 : bytes);
    if (block == nullptr) throw std::bad_alloc();
    return block;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t) noexcept { std::free(block); }

namespace dflash {
namespace {

// Neither batches nor the orders of later epochs take large blocks once the loader exists.
TEST(LoaderMemory, NextTakesNoLargeBlocks) {
    PrepareSettings settings;
    settings.inputs = std::vector<std::string>(45, DFLASH_FIXTURES "/data/chat_heldout.jsonl");  // orders of more than 64 KiB
    settings.target = DFLASH_FIXTURES "/tiny-qwen3.5";
    settings.max_length = 16;
    settings.keep_unsupervised = true;
    const Dataset dataset = Dataset::from_jsonl(settings);
    ASSERT_GT(static_cast<std::size_t>(dataset.documents()) * sizeof(std::int64_t), kLarge);
    Loader loader(dataset, {.seed = 1, .token_budget = 32768, .rank = 0, .ranks = 1, .prefetch = 2});
    (void)loader.next();
    const std::int64_t before = num_large;
    ASSERT_GT(before, 0);  // the counter works
    std::int64_t tokens = 0;
    while (true) {
        const PackedBatch& batch = loader.next();
        if (batch.epoch == 3) break;
        tokens += batch.tokens();
    }
    EXPECT_GT(tokens, 2 * dataset.tokens());
    EXPECT_EQ(num_large, before);
}

}  // namespace
}  // namespace dflash
