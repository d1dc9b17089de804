// SPDX-License-Identifier: MIT
#include "train/attention_tuning.h"

#include <fmt/core.h>

#include <algorithm>

#include "kernels/anchor_attention.h"

namespace dflash {

std::vector<DraftLayerSpec> layer_kinds(const DraftSpec& spec) {
    std::vector<DraftLayerSpec> kinds;
    for (const DraftLayerSpec& layer : spec.layers) {
        if (std::find(kinds.begin(), kinds.end(), layer) == kinds.end()) kinds.push_back(layer);
    }
    return kinds;
}

std::string describe_layer_kind(const DraftLayerSpec& layer) {
    const std::string reach = layer.window > 0 ? fmt::format("window {}", layer.window) : "full";
    return reach + (layer.causal_block ? ", causal blocks" : "");
}

std::string describe_attention(const DraftSpec& spec, Device device) {
    std::string line;
    for (const DraftLayerSpec& layer : layer_kinds(spec)) {
        const auto layers = std::count(spec.layers.begin(), spec.layers.end(), layer);
        line +=
            fmt::format("{}{} {} ({}): {}", line.empty() ? "" : "; ", layers, layers == 1 ? "layer" : "layers", describe_layer_kind(layer),
                        anchor_attention_kernel(device, spec.heads, spec.kv_heads, spec.head_dim, spec.block_size));
    }
    return line;
}

}  // namespace dflash
