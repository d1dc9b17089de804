// SPDX-License-Identifier: MIT
#include "model/weight_table.h"

#include <fmt/core.h>

#include <utility>

namespace dflash {

namespace {

using Slot = Tensor* (*)(TargetWeights&, std::int64_t);

TargetLayerWeights& layer_of(TargetWeights& weights, std::int64_t layer) { return weights.layers[static_cast<std::size_t>(layer)]; }

class Table {
public:
    explicit Table(const TargetConfig& config) : config_(config) {}

    void top(const char* name, const Shape& shape, Slot slot, bool zero_centred = false) {
        decls_.push_back({name, shape, zero_centred, slot, -1});
    }
    void in_layer(const char* name, const Shape& shape, Slot slot, bool zero_centred = false) {
        decls_.push_back({fmt::format("layers.{}.{}", layer_, name), shape, zero_centred, slot, layer_});
    }

    void attention() {
        const std::int64_t query = config_.heads * config_.head_dim;
        const std::int64_t key = config_.kv_heads * config_.head_dim;
        const std::int64_t query_rows = config_.family == TargetFamily::kHybrid ? 2 * query : query;  // with the output gate
        in_layer("self_attn.q_proj.weight", {query_rows, config_.hidden}, [](auto& w, auto l) { return &layer_of(w, l).attention.q_proj; });
        in_layer("self_attn.k_proj.weight", {key, config_.hidden}, [](auto& w, auto l) { return &layer_of(w, l).attention.k_proj; });
        in_layer("self_attn.v_proj.weight", {key, config_.hidden}, [](auto& w, auto l) { return &layer_of(w, l).attention.v_proj; });
        in_layer("self_attn.o_proj.weight", {config_.hidden, query}, [](auto& w, auto l) { return &layer_of(w, l).attention.o_proj; });
        if (!config_.has_qk_norm()) return;
        norm("self_attn.q_norm.weight", config_.head_dim, [](auto& w, auto l) { return &layer_of(w, l).attention.q_norm; });
        norm("self_attn.k_norm.weight", config_.head_dim, [](auto& w, auto l) { return &layer_of(w, l).attention.k_norm; });
    }

    void delta_rule() {
        const std::int64_t values = config_.value_heads * config_.value_dim;
        const std::int64_t channels = config_.conv_channels();
        const std::int64_t heads = config_.value_heads;
        in_layer("linear_attn.in_proj_qkv.weight", {channels, config_.hidden},
                 [](auto& w, auto l) { return &layer_of(w, l).delta.in_proj_qkv; });
        in_layer("linear_attn.in_proj_z.weight", {values, config_.hidden}, [](auto& w, auto l) { return &layer_of(w, l).delta.in_proj_z; });
        in_layer("linear_attn.in_proj_b.weight", {heads, config_.hidden}, [](auto& w, auto l) { return &layer_of(w, l).delta.in_proj_b; });
        in_layer("linear_attn.in_proj_a.weight", {heads, config_.hidden}, [](auto& w, auto l) { return &layer_of(w, l).delta.in_proj_a; });
        in_layer("linear_attn.conv1d.weight", {channels, config_.conv_taps}, [](auto& w, auto l) { return &layer_of(w, l).delta.conv; });
        in_layer("linear_attn.A_log", {heads}, [](auto& w, auto l) { return &layer_of(w, l).delta.a_log; });
        in_layer("linear_attn.dt_bias", {heads}, [](auto& w, auto l) { return &layer_of(w, l).delta.dt_bias; });
        in_layer("linear_attn.norm.weight", {config_.value_dim}, [](auto& w, auto l) { return &layer_of(w, l).delta.norm; });
        in_layer("linear_attn.out_proj.weight", {config_.hidden, values}, [](auto& w, auto l) { return &layer_of(w, l).delta.out_proj; });
    }

    void layer(std::int64_t index) {
        layer_ = index;
        const std::int64_t hidden = config_.hidden;
        const std::int64_t inner = config_.intermediate;
        norm("input_layernorm.weight", hidden, [](auto& w, auto l) { return &layer_of(w, l).input_norm; });
        if (config_.layer_kinds[static_cast<std::size_t>(index)] == TargetLayerKind::kFullAttention) {
            attention();
        } else {
            delta_rule();
        }
        norm("post_attention_layernorm.weight", hidden, [](auto& w, auto l) { return &layer_of(w, l).post_norm; });
        in_layer("mlp.gate_proj.weight", {inner, hidden}, [](auto& w, auto l) { return &layer_of(w, l).gate_proj; });
        in_layer("mlp.up_proj.weight", {inner, hidden}, [](auto& w, auto l) { return &layer_of(w, l).up_proj; });
        in_layer("mlp.down_proj.weight", {hidden, inner}, [](auto& w, auto l) { return &layer_of(w, l).down_proj; });
    }

    std::vector<WeightDecl> take() { return std::move(decls_); }

private:
    void norm(const char* name, std::int64_t size, Slot slot) { in_layer(name, {size}, slot, config_.zero_centred_norms()); }

    const TargetConfig& config_;
    std::int64_t layer_ = 0;
    std::vector<WeightDecl> decls_;
};

}  // namespace

std::vector<WeightDecl> weight_table(const TargetConfig& config, TargetPart part, std::int64_t num_layers) {
    if (part == TargetPart::kEmbeddingAndHead) num_layers = 0;
    if (num_layers < 0) num_layers = config.layers;
    DFLASH_CHECK(num_layers <= config.layers, "{} layers of a target that has {}", num_layers, config.layers);
    Table table(config);
    table.top(kEmbeddingName, {config.vocabulary, config.hidden}, [](auto& w, auto) { return &w.embedding; });
    for (std::int64_t i = 0; i < num_layers; ++i) table.layer(i);
    table.top(
        kFinalNormName, {config.hidden}, [](auto& w, auto) { return &w.final_norm; }, config.zero_centred_norms());
    if (!config.tied_head) table.top(kHeadName, {config.vocabulary, config.hidden}, [](auto& w, auto) { return &w.head; });
    return table.take();
}

}  // namespace dflash
