// SPDX-License-Identifier: MIT
// Names, shapes and memory of the frozen target's weights. weight_table lists them once; the same list feeds the memory plan and the
// loader. All are in the device's working dtype (f32 on the CPU, bf16 on CUDA) but for the three small ones that are marked f32. A tied
// head is the embedding itself: one buffer, counted once.
#pragma once

#include <string>
#include <vector>

#include "model/target_config.h"
#include "tensor/arena.h"
#include "tensor/plan.h"

namespace dflash {

// Which part is wanted: everything; or only what training from stored features needs (embedding, head, final norm).
enum class TargetPart { kAll, kEmbeddingAndHead };

// Buffers "target.<name>", names without the checkpoint's prefix: "embed_tokens.weight", "layers.3.self_attn.q_proj.weight", ...,
// "norm.weight", "lm_head.weight" (untied only). `num_layers`: layers from there on are left out (features end before them); -1 = all.
std::vector<BufferSpec> target_weight_buffers(const TargetConfig& config, TargetPart part, Device device, Lifetime lifetime,
                                              std::int64_t num_layers = -1);

struct AttentionWeights {
    Tensor q_proj, k_proj, v_proj, o_proj;  // (out, in); hybrid q_proj: 2 H D rows, query and gate interleaved per head
    Tensor q_norm, k_norm;                  // (D); undefined for Llama
};
struct DeltaWeights {
    Tensor in_proj_qkv, in_proj_z, in_proj_b, in_proj_a;  // (out, C)
    Tensor conv;                                          // (channels, K)
    Tensor a_log, dt_bias;                                // f32 (nv)
    Tensor norm;                                          // f32 (dv), plain
    Tensor out_proj;                                      // (C, nv dv)
};
struct TargetLayerWeights {
    Tensor input_norm, post_norm;  // (C)
    AttentionWeights attention;    // full attention layers
    DeltaWeights delta;            // linear attention layers
    Tensor gate_proj, up_proj, down_proj;
};
struct TargetWeights {
    Tensor embedding;   // (V, C)
    Tensor final_norm;  // (C)
    Tensor head;        // (V, C): the embedding when tied
    std::vector<TargetLayerWeights> layers;
};

// Views into the arena by the names above.
TargetWeights bind_target_weights(const TargetConfig& config, TargetPart part, const Arena& arena, std::int64_t num_layers = -1);
struct TargetLoadReport {
    std::int64_t loaded = 0, skipped_vision = 0, skipped_mtp = 0, skipped_unused_layers = 0;  // tensors
    std::vector<std::string> unexpected;                                                      // tensors of no known group
    std::vector<std::string> warnings;                                                        // as logged
};
// Fills them from the checkpoint folder (any name prefix of docs/formats.md). Missing tensors or wrong shapes: Error(kBadInput) with all
// names. A tied config beside a head that differs from the embedding is an error too. Tensor by tensor: host memory beside the weights stays
// bounded on every device, and the mapped pages do not stay resident. Done when it returns; a long load tells how far it is.
TargetLoadReport load_target_weights(const std::string& folder, const TargetConfig& config, TargetPart part, const TargetWeights& weights);
// The same checks without loading: `loaded` counts the tensors that would be.
TargetLoadReport check_target_checkpoint(const std::string& folder, const TargetConfig& config);
// Identifies a target: SHA-256 over config, tensor names, dtypes, shapes and samples of each tensor's bytes; the same however the tensors
// are spread over shards. Reads a few kilobytes a tensor.
std::string target_fingerprint(const std::string& folder);

}  // namespace dflash
