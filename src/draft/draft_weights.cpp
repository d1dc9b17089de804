// SPDX-License-Identifier: MIT
#include "draft/draft_weights.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/rng.h"
#include "model/tensor_loader.h"
#include "tensor/working_dtype.h"

namespace dflash {
namespace {

constexpr double kInitialDeviation = 0.02;
constexpr std::int64_t kDrawnElements = std::int64_t{1} << 22;  // at once
constexpr const char* kWeightPrefix = "draft.weight";
constexpr const char* kRemainderPrefix = "draft.remainder";

// The published names, in the fixed order. `visit(name, tensor)`; Tensors is DraftTensors, const or not.
template <typename Tensors, typename Visit>
void for_each_tensor(Tensors& tensors, const Visit& visit) {
    visit("fc.weight", tensors.fc);
    visit("hidden_norm.weight", tensors.hidden_norm);
    for (std::size_t i = 0; i < tensors.layers.size(); ++i) {
        auto& layer = tensors.layers[i];
        const std::string prefix = fmt::format("layers.{}.", i);
        visit(prefix + "input_layernorm.weight", layer.input_norm);
        visit(prefix + "self_attn.q_proj.weight", layer.q_proj);
        visit(prefix + "self_attn.k_proj.weight", layer.k_proj);
        visit(prefix + "self_attn.v_proj.weight", layer.v_proj);
        visit(prefix + "self_attn.o_proj.weight", layer.o_proj);
        visit(prefix + "self_attn.q_norm.weight", layer.q_norm);
        visit(prefix + "self_attn.k_norm.weight", layer.k_norm);
        visit(prefix + "post_attention_layernorm.weight", layer.post_norm);
        visit(prefix + "mlp.gate_proj.weight", layer.gate_proj);
        visit(prefix + "mlp.up_proj.weight", layer.up_proj);
        visit(prefix + "mlp.down_proj.weight", layer.down_proj);
    }
    visit("norm.weight", tensors.norm);
}

Tensor of_shape(const Shape& shape) {
    Tensor tensor;
    tensor.shape = shape;
    return tensor;
}

// The tensors of a drafter as shapes without memory.
DraftTensors shapes_of(const DraftSpec& spec) {
    const std::int64_t c = spec.hidden;
    const std::int64_t f = spec.intermediate;
    const std::int64_t q = spec.heads * spec.head_dim;
    const std::int64_t kv = spec.kv_heads * spec.head_dim;
    DraftTensors tensors;
    tensors.fc = of_shape({c, static_cast<std::int64_t>(spec.taps.size()) * c});
    tensors.hidden_norm = of_shape({c});
    tensors.norm = of_shape({c});
    DraftLayerWeights layer;
    layer.input_norm = layer.post_norm = of_shape({c});
    layer.q_proj = of_shape({q, c});
    layer.k_proj = layer.v_proj = of_shape({kv, c});
    layer.o_proj = of_shape({c, q});
    layer.q_norm = layer.k_norm = of_shape({spec.head_dim});
    layer.gate_proj = layer.up_proj = of_shape({f, c});
    layer.down_proj = of_shape({c, f});
    tensors.layers.assign(spec.layers.size(), layer);
    return tensors;
}

// FNV-1a: a stable number for a name.
std::uint64_t hash_name(const std::string& name) {
    std::uint64_t hash = 0xcbf29ce484222325ULL;
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    return hash;
}

}  // namespace

std::vector<NamedTensor> named_tensors(const DraftTensors& tensors) {
    std::vector<NamedTensor> named;
    for_each_tensor(tensors, [&](const std::string& name, const Tensor& tensor) { named.push_back({name, tensor}); });
    return named;
}

std::vector<DraftTensorDecl> draft_tensor_table(const DraftSpec& spec) {
    std::vector<DraftTensorDecl> table;
    for (const NamedTensor& entry : named_tensors(shapes_of(spec))) table.push_back({entry.name, entry.tensor.shape});
    return table;
}

std::vector<BufferSpec> draft_tensor_buffers(const DraftSpec& spec, const std::string& prefix, Category category, Lifetime lifetime,
                                             DType matrices, DType vectors) {
    std::vector<BufferSpec> buffers;
    for (const DraftTensorDecl& decl : draft_tensor_table(spec)) {
        buffers.push_back({prefix + "." + decl.name, decl.shape.rank() == 1 ? vectors : matrices, decl.shape, category, lifetime});
    }
    return buffers;
}

DraftTensors bind_draft_tensors(const DraftSpec& spec, const std::string& prefix, const Arena& arena) {
    DraftTensors tensors = shapes_of(spec);
    for_each_tensor(tensors, [&](const std::string& name, Tensor& tensor) { tensor = arena.tensor(prefix + "." + name); });
    return tensors;
}

std::vector<NamedMaster> named_masters(const DraftMasters& masters) {
    std::vector<NamedMaster> named;
    for_each_tensor(masters.weights, [&](const std::string& name, const Tensor& weight) { named.push_back({name, weight, {}}); });
    std::size_t at = 0;
    for_each_tensor(masters.remainders, [&](const std::string&, const Tensor& remainder) {
        if (remainder.defined()) named[at].remainder = remainder;
        ++at;
    });
    return named;
}

std::vector<BufferSpec> draft_master_buffers(const DraftSpec& spec, Device device, Lifetime lifetime) {
    const DType dtype = working_dtype(device);
    std::vector<BufferSpec> buffers = draft_tensor_buffers(spec, kWeightPrefix, Category::kMaster, lifetime, dtype, dtype);
    if (dtype == DType::kF32) return buffers;
    for (BufferSpec& rest : draft_tensor_buffers(spec, kRemainderPrefix, Category::kMaster, lifetime, DType::kU16, DType::kU16)) {
        buffers.push_back(std::move(rest));
    }
    return buffers;
}

DraftMasters bind_draft_masters(const DraftSpec& spec, const Arena& arena) {
    DraftMasters masters = {bind_draft_tensors(spec, kWeightPrefix, arena), {}};
    if (masters.weights.fc.dtype != DType::kF32) masters.remainders = bind_draft_tensors(spec, kRemainderPrefix, arena);
    return masters;
}

namespace {

// Rows begin .. begin + count - 1 of a matrix, from the random streams of those rows.
void draw_rows(const NamedMaster& matrix, std::uint64_t seed, std::int64_t begin, std::int64_t count, float* values) {
    const std::uint64_t stream = hash_name(matrix.name);
    const std::int64_t columns = matrix.weight.row_elements();
#pragma omp parallel for schedule(static)
    for (std::int64_t row = 0; row < count; ++row) {
        Philox rng(seed, mix_stream(stream, static_cast<std::uint64_t>(begin + row)));
        for (std::int64_t i = 0; i < columns; ++i) values[row * columns + i] = static_cast<float>(kInitialDeviation * rng.next_normal());
    }
}

}  // namespace

void initialise_draft(const DraftMasters& masters, std::uint64_t seed) {
    TensorLoader loader(masters.weights.fc.device);
    std::vector<float> values;
    for (const NamedMaster& master : named_masters(masters)) {
        const bool is_norm = master.weight.shape.rank() == 1;
        const std::int64_t columns = is_norm ? 1 : master.weight.row_elements();
        const std::int64_t piece = std::clamp<std::int64_t>(kDrawnElements / columns, 1, master.weight.rows());
        for (std::int64_t begin = 0; begin < master.weight.rows(); begin += piece) {
            const std::int64_t count = std::min(piece, master.weight.rows() - begin);
            values.assign(static_cast<std::size_t>(count * columns), 1.0F);
            if (!is_norm) draw_rows(master, seed, begin, count, values.data());
            loader.convert(values.data(), master.weight.slice_rows(begin, count),
                           master.remainder.defined() ? master.remainder.slice_rows(begin, count) : Tensor{});
        }
    }
    loader.finish();
}

}  // namespace dflash
