// SPDX-License-Identifier: MIT
// Which anchor-attention kernel the layers of a drafter run.
#pragma once

#include <string>
#include <vector>

#include "draft/draft_spec.h"
#include "tensor/device.h"

namespace dflash {

// The kinds of layers that a drafter has, each once, in order.
std::vector<DraftLayerSpec> layer_kinds(const DraftSpec& spec);
// "full", "window 2048, causal blocks".
std::string describe_layer_kind(const DraftLayerSpec& layer);

// One line: each kind of layer with the kernel it runs. Error(kBadInput) where a layer has none on this device.
std::string describe_attention(const DraftSpec& spec, Device device);

}  // namespace dflash
