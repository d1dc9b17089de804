// SPDX-License-Identifier: MIT
// The drafter's trained tensors: names (the published ones), shapes, memory, initial values, reading and writing. f32 stands for the
// device's working dtype.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "draft/draft_spec.h"
#include "tensor/arena.h"
#include "tensor/host_reader.h"
#include "tensor/plan.h"

namespace dflash {

struct DraftLayerWeights {
    Tensor input_norm, post_norm;           // f32 (C)
    Tensor q_proj, k_proj, v_proj, o_proj;  // f32 (out, in)
    Tensor q_norm, k_norm;                  // f32 (D)
    Tensor gate_proj, up_proj, down_proj;   // f32
};
// The same struct holds weights or gradients.
struct DraftTensors {
    Tensor fc;           // f32 (C, K*C)
    Tensor hidden_norm;  // f32 (C)
    Tensor norm;         // f32 (C)
    std::vector<DraftLayerWeights> layers;
};
struct NamedTensor {
    std::string name;  // published name, e.g. "layers.0.self_attn.q_proj.weight"
    Tensor tensor;
};
// In a fixed order: the order of optimizer sums, of checkpoints and of reductions over ranks.
std::vector<NamedTensor> named_tensors(const DraftTensors& tensors);

// What is trained: the weights, and on CUDA beside each bf16 weight the u16 remainder of its 32-bit master (kernels/adamw.h). A remainder is
// undefined where its weight is f32, and where nothing is trained.
struct DraftMasters {
    DraftTensors weights, remainders;
};
struct NamedMaster {
    std::string name;
    Tensor weight, remainder;
};
std::vector<NamedMaster> named_masters(const DraftMasters& masters);  // in the same order

struct DraftTensorDecl {
    std::string name;
    Shape shape;
};
std::vector<DraftTensorDecl> draft_tensor_table(const DraftSpec& spec);
// Buffers "<prefix>.<name>". `vectors` is the dtype of the norms.
std::vector<BufferSpec> draft_tensor_buffers(const DraftSpec& spec, const std::string& prefix, Category category, Lifetime lifetime,
                                             DType matrices = DType::kF32, DType vectors = DType::kF32);
DraftTensors bind_draft_tensors(const DraftSpec& spec, const std::string& prefix, const Arena& arena);
// The same for masters: buffers "draft.weight.<name>" in the device's working dtype and, where that is bf16, "draft.remainder.<name>".
std::vector<BufferSpec> draft_master_buffers(const DraftSpec& spec, Device device, Lifetime lifetime);
DraftMasters bind_draft_masters(const DraftSpec& spec, const Arena& arena);

// Normal(0, 0.02) for matrices, ones for norms; each tensor from its own random stream (its name), so shapes elsewhere do not matter.
void initialise_draft(const DraftMasters& masters, std::uint64_t seed);
// Published layout or unpruned speculators layout. Names and shapes are checked; all faults are listed at once.
void load_draft(const std::string& folder, const DraftSpec& spec, const DraftMasters& masters);

struct DraftProvenance;  // draft/provenance.h
// A drafter's file may carry copies of the target's embedding and head (speculators layout); the target's own serve in their place, so they
// must be the same: rows all over them are compared as bf16. Error(kBadInput) where they differ.
void check_draft_copies(const std::string& folder, const DraftSpec& spec, const Tensor& embedding, const Tensor& head, HostReader& reader);

enum class SavedAs { kBf16, kF32 };
// Writes config.json, model.safetensors and training.json into `folder` (made; each file atomic). f32 takes weights that are f32.
void save_draft(const std::string& folder, const DraftSpec& spec, const TargetConfig& target, const DraftTensors& weights,
                const DraftProvenance& provenance, HostReader& reader, SavedAs saved_as = SavedAs::kBf16);

}  // namespace dflash
