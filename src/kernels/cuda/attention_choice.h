// SPDX-License-Identifier: MIT
// Which fused anchor attention a shape runs on a CUDA device: the kernels that are compiled, the default among them, and choices that were
// measured (`dflash tune`). Plain C++ in every build, so that a plan or a report needs neither a GPU nor its toolkit.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dflash::cuda {

enum class AttentionBackend : std::uint8_t { kPortable, kHopper };
enum class AttentionPass : std::uint8_t { kForward, kBackward };

struct AttentionKernel {
    AttentionBackend backend = AttentionBackend::kPortable;
    int tile = 0;           // of the back end's compiled tile sizes (tile_config.h); 0 is the default
    const char* id = "";    // in caches and run records
    const char* name = "";  // for people
    bool operator==(const AttentionKernel& other) const { return backend == other.backend && tile == other.tile; }
};

// The kernel that a shape runs on a device of this compute capability (major * 10 + minor) where nothing else was chosen. Throws bad input
// with the list of shapes that have one.
AttentionKernel choose_attention_kernel(int compute_capability, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                                        std::int64_t block_size);
// Every compiled kernel that such a device can run for one pass, the default first.
std::vector<AttentionKernel> attention_kernels(int compute_capability, AttentionPass pass);

// What a choice depends on, beside the device and the build. Lengths count by powers of two.
struct AttentionKey {
    AttentionPass pass = AttentionPass::kForward;
    std::int64_t heads = 0, kv_heads = 0, head_dim = 0, block_size = 0;
    std::int64_t window = 0;  // 0 = full
    bool causal_block = false;
    std::int64_t context_bucket = 0, anchor_bucket = 0;  // see length_bucket()
    bool operator==(const AttentionKey&) const = default;
    // "anchor_attention forward bf16 heads=32 kv_heads=8 ...": every field by name.
    std::string text() const;
};
// The smallest power of two that is at least `length`.
std::int64_t length_bucket(std::int64_t length);

// Kernels that were chosen for the shapes of a run; every other shape runs its default.
class AttentionChoices {
public:
    void set(const AttentionKey& key, const AttentionKernel& kernel);
    // Null where nothing was chosen. Allocates nothing.
    const AttentionKernel* find(const AttentionKey& key) const;
    const std::vector<std::pair<AttentionKey, AttentionKernel>>& all() const { return chosen_; }

private:
    std::vector<std::pair<AttentionKey, AttentionKernel>> chosen_;
};

}  // namespace dflash::cuda
