// SPDX-License-Identifier: MIT
#include "kernels/cuda/attention_choice.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <iterator>

#include "base/error.h"
#include "kernels/cuda/tile_config.h"

namespace dflash::cuda {

namespace {

constexpr int kHopperCapability = 90;
constexpr int kOldestCapability = 80;

constexpr AttentionKernel kHopper{AttentionBackend::kHopper, 0, "hopper", "fused, Hopper (wgmma)"};
// By AttentionKernel::tile; named after the tiles of kPortableForward and kPortableKey.
constexpr AttentionKernel kPortable[2][2] = {
    {{AttentionBackend::kPortable, 0, "portable-8x64", "fused, portable (mma.sync)"},
     {AttentionBackend::kPortable, 1, "portable-4x64", "fused, portable (mma.sync), 64 rows"}},
    {{AttentionBackend::kPortable, 0, "portable-4x64", "fused, portable (mma.sync)"},
     {AttentionBackend::kPortable, 1, "portable-4x32", "fused, portable (mma.sync), 32 queries at a time"}},
};
static_assert(std::size(kPortableForward) == 2 && std::size(kPortableKey) == 2);

}  // namespace

AttentionKernel choose_attention_kernel(int compute_capability, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                                        std::int64_t block_size) {
    const std::int64_t group = kv_heads > 0 && heads % kv_heads == 0 ? heads / kv_heads : 0;
    const bool fused =
        group >= 1 && group <= 8 && head_dim >= 8 && head_dim <= 128 && head_dim % 8 == 0 && block_size >= 1 && block_size <= 64;
    if (!fused) {
        throw_bad_input(
            "no fused anchor attention for {} heads over {} kv heads of {}, blocks of {}: there are kernels for 1 to 8 heads a kv "
            "head, head dims that are multiples of 8 up to 128, and blocks of 1 to 64",
            heads, kv_heads, head_dim, block_size);
    }
    if (compute_capability < kOldestCapability) {
        throw_bad_input("no fused anchor attention for compute capability {}.{}: 8.0 or later is needed", compute_capability / 10,
                        compute_capability % 10);
    }
    return attention_kernels(compute_capability, AttentionPass::kForward).front();
}

std::vector<AttentionKernel> attention_kernels(int compute_capability, AttentionPass pass) {
    std::vector<AttentionKernel> kernels;
    if (compute_capability == kHopperCapability) kernels.push_back(kHopper);
    if (compute_capability >= kOldestCapability) {
        for (const AttentionKernel& kernel : kPortable[static_cast<int>(pass)]) kernels.push_back(kernel);
    }
    return kernels;
}

std::int64_t length_bucket(std::int64_t length) {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(length, 1))));
}

std::string AttentionKey::text() const {
    return fmt::format(
        "anchor_attention {} bf16 heads={} kv_heads={} head_dim={} block={} window={} causal_block={} context<={} anchors<={}",
        pass == AttentionPass::kForward ? "forward" : "backward", heads, kv_heads, head_dim, block_size, window, causal_block ? 1 : 0,
        context_bucket, anchor_bucket);
}

void AttentionChoices::set(const AttentionKey& key, const AttentionKernel& kernel) {
    const auto found = std::find_if(chosen_.begin(), chosen_.end(), [&](const auto& entry) { return entry.first == key; });
    if (found != chosen_.end()) {
        found->second = kernel;
    } else {
        chosen_.emplace_back(key, kernel);
    }
}

const AttentionKernel* AttentionChoices::find(const AttentionKey& key) const {
    for (const auto& [chosen, kernel] : chosen_) {
        if (chosen == key) return &kernel;
    }
    return nullptr;
}

}  // namespace dflash::cuda
