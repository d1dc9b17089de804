// SPDX-License-Identifier: MIT
// After its first step the training loop maps no memory and takes no heap block of 64 KiB or more: evaluations and checkpoints included.
// The allocator and mmap are replaced in this program, so that every call is seen, from whatever library. On a GPU, whose driver has a heap of its
// own, it is the device's free memory that must not change.
#include <errno.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>

#include "base/host_memory.h"
#include "base/log.h"
#include "support/device_case.h"
#include "tensor/device_memory.h"
#include "train/train_fixture.h"
#include "train/trainer.h"

namespace {

constexpr std::size_t kLargeBlock = 64 * 1024;
std::atomic<bool> counting{false};
std::atomic<std::size_t> large_blocks{0}, largest_block{0}, mappings{0};

void note_block(std::size_t bytes) {
    if (!counting || bytes < kLargeBlock) return;
    ++large_blocks;
    if (bytes > largest_block) largest_block = bytes;
}

}  // namespace

extern "C" {
void* __libc_malloc(std::size_t bytes);                           // NOLINT
void* __libc_calloc(std::size_t count, std::size_t bytes);        // NOLINT
void* __libc_realloc(void* block, std::size_t bytes);             // NOLINT
void* __libc_memalign(std::size_t alignment, std::size_t bytes);  // NOLINT

void* malloc(std::size_t bytes) noexcept {
    note_block(bytes);
    return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
    note_block(count * bytes);
    return __libc_calloc(count, bytes);
}
void* realloc(void* block, std::size_t bytes) noexcept {
    note_block(bytes);
    return __libc_realloc(block, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
    note_block(bytes);
    return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** block, std::size_t alignment, std::size_t bytes) noexcept {
    note_block(bytes);
    *block = __libc_memalign(alignment, bytes);
    return *block == nullptr ? ENOMEM : 0;
}
void* mmap(void* address, std::size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
    if (counting) ++mappings;
    return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}
}

namespace dflash {
namespace {

TEST(TrainMemory, TheCounterSeesLargeBlocksAndMappings) {
    large_blocks = mappings = 0;
    counting = true;
    void* volatile block = std::malloc(kLargeBlock);
    void* volatile small = std::malloc(kLargeBlock - 1);
    const std::vector<char> vector(kLargeBlock);
    void* const map = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    counting = false;
    munmap(map, 4096);
    std::free(block);
    std::free(small);
    EXPECT_EQ(vector.size(), kLargeBlock);
    EXPECT_EQ(large_blocks.load(), 2U);
    EXPECT_EQ(mappings.load(), 1U);
}

class TrainMemoryLoop : public testing::DeviceCases<std::string> {
protected:
    bool on_cpu() const { return device().type == DeviceType::kCpu; }
};

TEST_P(TrainMemoryLoop, IsSteady) {
    set_log_level(LogLevel::kError);
    const testing::TemporaryFolder folder;
    RunSettings settings = testing::small_run(c_, folder, "run", testing::device_type_name(device().type));
    settings.steps = 0;
    settings.epochs = 3;
    settings.accumulate = 1;
    settings.token_budget = 512;
    settings.max_anchors = 32;
    settings.val_data = folder.file("val-data");
    settings.eval_every = 5;
    settings.save_every = 4;
    settings.eval_new_tokens = 24;
    large_blocks = largest_block = mappings = 0;
    std::int64_t evaluations = 0;
    std::int64_t last_epoch = 0;
    std::size_t used = 0, used_at_the_end = 0;  // of the device
    const std::size_t libraries = resident_file_bytes();
    const auto after_step = [&](const StepMetrics& metrics) {
        last_epoch = metrics.epoch;
        counting = on_cpu() && metrics.step < metrics.total_steps;
        if (!on_cpu()) (metrics.step == 1 ? used : used_at_the_end) = used_memory_bytes(device());
    };
    const TrainSummary summary =
        run_training(settings, {.on_step = after_step, .on_eval = [&](const EvalMetrics&) { ++evaluations; }, .stop_requested = {}});
    counting = false;
    set_log_level(LogLevel::kInfo);
    ASSERT_GT(summary.step, 9);
    EXPECT_GE(evaluations, 2);
    EXPECT_EQ(last_epoch, 2);
    EXPECT_EQ(large_blocks.load(), 0U) << "the largest was " << largest_block.load() << " bytes";
    EXPECT_EQ(mappings.load(), 0U);
    EXPECT_EQ(used_at_the_end, used);
    if (on_cpu()) {
        EXPECT_LE(summary.resident_peak_bytes - libraries, summary.planned_bytes + 150000000);
    } else {
        EXPECT_GE(used, summary.planned_bytes);
    }
}

DFLASH_CASES_ON_EACH_DEVICE(Targets, TrainMemoryLoop, ::testing::Values(std::string("tiny-qwen3"), std::string("tiny-qwen3.5")));

}  // namespace
}  // namespace dflash
