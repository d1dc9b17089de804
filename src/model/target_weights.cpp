// SPDX-License-Identifier: MIT
#include "model/target_weights.h"

#include "model/weight_table.h"
#include "tensor/working_dtype.h"

namespace dflash {

namespace {

std::string buffer_name(const WeightDecl& decl) { return "target." + decl.name; }

}  // namespace

std::vector<BufferSpec> target_weight_buffers(const TargetConfig& config, TargetPart part, Device device, Lifetime lifetime,
                                              std::int64_t num_layers) {
    std::vector<BufferSpec> buffers;
    TargetWeights undefined = undefined_target_weights(config, part, num_layers);
    for (const WeightDecl& decl : weight_table(config, undefined)) {
        const DType dtype = decl.exact ? DType::kF32 : working_dtype(device);
        buffers.push_back({buffer_name(decl), dtype, decl.shape, Category::kTarget, lifetime});
    }
    return buffers;
}

TargetWeights bind_target_weights(const TargetConfig& config, TargetPart part, const Arena& arena, std::int64_t num_layers) {
    TargetWeights weights = undefined_target_weights(config, part, num_layers);
    for (const WeightDecl& decl : weight_table(config, weights)) *decl.tensor = arena.tensor(buffer_name(decl));
    if (config.tied_head) weights.head = weights.embedding;
    return weights;
}

}  // namespace dflash
