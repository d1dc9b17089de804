// SPDX-License-Identifier: MIT
// The target's decoder layers over some rows of tokens: what the packed forward (TargetModel) and decoding (TargetSession) share. They
// differ in where rows stand (LayerRows) and in what outlives the call (LayerMemory). All memory is planned; private to target/.
// Where a text stands is read from device memory (positions, key ranges, borders), never from the host: the launches of a call depend on
// its row counts alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/context.h"
#include "kernels/linear.h"
#include "model/target_config.h"
#include "model/target_weights.h"
#include "tensor/arena.h"
#include "tensor/plan.h"

namespace dflash {

// Scratch for calls of at most `capacity` rows; states are in the device's working dtype.
struct LayerScratch {
    Tensor ids, positions, key_begin, key_end;  // i32 (capacity)
    Tensor document_begin;                      // i32 (capacity + 1)
    Tensor residual;                            // (capacity, C): the stream that taps copy
    Tensor hidden;                              // (capacity, C): normed input of a branch
    Tensor branch;                              // (capacity, C): output of the branch, added to the stream by the next norm
    Tensor mixer;                               // attention, delta rule and feed-forward in turn
    Tensor rope_cos, rope_sin;                  // f32 (positions, rotary dims / 2), persistent
};

struct LayerScratchNames {
    std::string scratch;  // prefix of the scratch buffers
    std::string rope;     // prefix of the angle tables
};
std::vector<BufferSpec> layer_scratch_buffers(const TargetConfig& config, Device device, std::int64_t capacity, std::int64_t positions,
                                              const LayerScratchNames& names, Lifetime scratch, Lifetime persistent);
// Binds, and fills the angle tables.
LayerScratch bind_layer_scratch(const TargetConfig& config, const LayerScratchNames& names, const Arena& arena);
std::vector<LinearShape> layer_linears(const TargetConfig& config, std::int64_t capacity);
std::size_t layer_workspace_bytes(const TargetConfig& config, Device device);

// The rows of one call; ids, positions, key ranges and borders stand in the scratch.
struct LayerRows {
    std::int64_t rows = 0;       // rows that the products run on
    std::int64_t live = 0;       // the first `live` are tokens; the others fill up the tile and touch nothing that is kept
    std::int64_t documents = 1;  // of the live rows
};

// What one layer keeps between calls; undefined parts start from nothing at every document (packed batches).
struct LayerMemory {
    Tensor k, v;          // attention: (cache rows, G, D), a row by position
    Tensor conv_history;  // delta rule: (taps - 1, channels)
    Tensor state;         // delta rule: f32 (nv, dk, dv)
    Tensor step_qkv;      // (tile, channels), step_b and step_a (tile, nv): a step's inputs, for replay_delta()
    Tensor step_b, step_a;
};

enum class LayerMode {
    kPacked,   // whole documents; delta rule in chunk form, from zero
    kPrefill,  // continues the memory; delta rule in chunk form
    kStep,     // as prefill in recurrent form, and the delta layers' memory stays as it was until replay_delta()
};

// Layers and where they work.
struct TargetLayers {
    const TargetConfig* config = nullptr;
    const TargetWeights* weights = nullptr;
    LayerScratch scratch;
    std::vector<LayerMemory> memory;  // one a layer, or empty for packed batches
    Tensor step_state;                // f32 (nv, dk, dv): working copy of a layer's state in steps

    // Runs `num_layers` layers over the rows. Taps: residual after layer n (n = -1: the embedding) to its columns of `taps_out`
    // (rows, K*C). `final_out`, if defined, receives the state after the last norm (rows, C).
    void run(const Context& context, LayerMode mode, const LayerRows& rows, std::int64_t num_layers, std::span<const std::int64_t> taps,
             const Tensor& taps_out, const Tensor& final_out) const;
    // Takes the first `count` rows of the last step into a delta layer's memory; document_begin must say {0, count}.
    void replay_delta(const Context& context, std::int64_t layer, std::int64_t count) const;
    bool is_delta(std::int64_t layer) const {
        return config->layer_kinds[static_cast<std::size_t>(layer)] == TargetLayerKind::kLinearAttention;
    }
};

}  // namespace dflash
