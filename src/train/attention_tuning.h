// SPDX-License-Identifier: MIT
// Which anchor-attention kernel the layers of a drafter run: the built-in default, or what `dflash tune` measured to be faster on this device,
// remembered in the tile cache (io/tile_cache.h) and written into the record of every run that used it.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "draft/draft_spec.h"
#include "io/tile_cache.h"
#include "kernels/context.h"
#include "kernels/cuda/attention_choice.h"
#include "tensor/device.h"

namespace dflash {

// The kinds of layers that a drafter has, each once, in order.
std::vector<DraftLayerSpec> layer_kinds(const DraftSpec& spec);
// "full", "window 2048, causal blocks".
std::string describe_layer_kind(const DraftLayerSpec& layer);

// The choices that a drafter's layers ask for in micro-batches of that size: each kind of layer, forward and backward.
std::vector<cuda::AttentionKey> attention_keys(const DraftSpec& spec, std::int64_t tokens, std::int64_t anchors);

// A GPU and the build that its kernels come from.
struct TuningDevice {
    std::string name;            // as the driver calls it
    int compute_capability = 0;  // major * 10 + minor
    std::string build;           // build_id()
    // The key of a tile cache: every measurement holds for one build, device and shape.
    std::string cache_key(const cuda::AttentionKey& key) const;
    // The compiled kernel of that id, or null.
    const cuda::AttentionKernel* kernel_of(const cuda::AttentionKey& key, const std::string& id) const;

    explicit TuningDevice(Device device);
    TuningDevice(std::string name, int compute_capability, std::string build);

private:
    std::vector<cuda::AttentionKernel> forward_, backward_;
};

// What the cache knows; keys that it does not know keep their default.
cuda::AttentionChoices remembered_choices(TileCache& cache, const TuningDevice& device, const std::vector<cuda::AttentionKey>& keys);
// Milliseconds that a kernel takes for a key.
using MeasureKernel = std::function<double(const cuda::AttentionKey& key, const cuda::AttentionKernel& kernel)>;
// Measures every kernel that the device has for each key and stores the fastest; the default wins where another gains less than 2 %.
struct TunedKernel {
    cuda::AttentionKey key;
    std::vector<std::pair<cuda::AttentionKernel, double>> ms;  // the default first
    cuda::AttentionKernel best;
    bool stored = false;
};
TunedKernel tune_attention(TileCache& cache, const TuningDevice& device, const cuda::AttentionKey& key, const MeasureKernel& measure);
// On the GPU of that context.
double measure_attention(Context& context, const cuda::AttentionKey& key, const cuda::AttentionKernel& kernel);

// As a run records them: {"anchor_attention forward ...": "hopper"}, and back. A kernel that this device or build does not have is left out
// with a warning: its layers run the default.
nlohmann::json choices_to_json(const cuda::AttentionChoices& choices);
cuda::AttentionChoices choices_from_json(const nlohmann::json& object, const TuningDevice& device,
                                         const std::vector<cuda::AttentionKey>& keys);
// The choices of a run: those of its record on --resume, else those of the tile cache. None on the CPU.
cuda::AttentionChoices choices_for_run(Device device, const std::vector<cuda::AttentionKey>& keys, const nlohmann::json* recorded);

// One line: each kind of layer with the kernel it runs. Error(kBadInput) where a layer has none on this device.
std::string describe_attention(const DraftSpec& spec, Device device);
// One line: the choices that differ from the defaults; empty where there is none.
std::string describe_choices(const cuda::AttentionChoices& choices, Device device);

}  // namespace dflash
