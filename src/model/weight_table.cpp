// SPDX-License-Identifier: MIT
#include "model/weight_table.h"

#include <utility>

namespace dflash {

namespace {

class Table {
public:
    explicit Table(const TargetConfig& config) : config_(config) {}

    void matrix(const std::string& name, const Shape& shape, Tensor& tensor) {
        decls_.push_back({prefix_ + name, shape, false, false, &tensor});
    }
    void norm(const std::string& name, std::int64_t size, Tensor& tensor) {
        decls_.push_back({prefix_ + name, {size}, config_.zero_centred_norms(), false, &tensor});
    }
    void exact(const std::string& name, std::int64_t size, Tensor& tensor) {
        decls_.push_back({prefix_ + name, {size}, false, true, &tensor});
    }

    void layer(std::int64_t index, TargetLayerWeights& weights) {
        const std::int64_t hidden = config_.hidden;
        const std::int64_t inner = config_.intermediate;
        prefix_ = fmt::format("layers.{}.", index);
        norm("input_layernorm.weight", hidden, weights.input_norm);
        if (config_.layer_kinds[static_cast<std::size_t>(index)] == TargetLayerKind::kFullAttention) {
            attention(weights.attention);
        } else {
            delta_rule(weights.delta);
        }
        norm("post_attention_layernorm.weight", hidden, weights.post_norm);
        matrix("mlp.gate_proj.weight", {inner, hidden}, weights.gate_proj);
        matrix("mlp.up_proj.weight", {inner, hidden}, weights.up_proj);
        matrix("mlp.down_proj.weight", {hidden, inner}, weights.down_proj);
        prefix_.clear();
    }

    std::vector<WeightDecl> take() { return std::move(decls_); }

private:
    void attention(AttentionWeights& weights) {
        const std::int64_t query = config_.heads * config_.head_dim;
        const std::int64_t key = config_.kv_heads * config_.head_dim;
        const std::int64_t query_rows = config_.family == TargetFamily::kHybrid ? 2 * query : query;  // with the output gate
        matrix("self_attn.q_proj.weight", {query_rows, config_.hidden}, weights.q_proj);
        matrix("self_attn.k_proj.weight", {key, config_.hidden}, weights.k_proj);
        matrix("self_attn.v_proj.weight", {key, config_.hidden}, weights.v_proj);
        matrix("self_attn.o_proj.weight", {config_.hidden, query}, weights.o_proj);
        if (!config_.has_qk_norm()) return;
        norm("self_attn.q_norm.weight", config_.head_dim, weights.q_norm);
        norm("self_attn.k_norm.weight", config_.head_dim, weights.k_norm);
    }

    void delta_rule(DeltaWeights& weights) {
        const std::int64_t hidden = config_.hidden;
        const std::int64_t heads = config_.value_heads;
        const std::int64_t values = heads * config_.value_dim;
        const std::int64_t channels = config_.conv_channels();
        matrix("linear_attn.in_proj_qkv.weight", {channels, hidden}, weights.in_proj_qkv);
        matrix("linear_attn.in_proj_z.weight", {values, hidden}, weights.in_proj_z);
        matrix("linear_attn.in_proj_b.weight", {heads, hidden}, weights.in_proj_b);
        matrix("linear_attn.in_proj_a.weight", {heads, hidden}, weights.in_proj_a);
        matrix("linear_attn.conv1d.weight", {channels, config_.conv_taps}, weights.conv);
        exact("linear_attn.A_log", heads, weights.a_log);
        exact("linear_attn.dt_bias", heads, weights.dt_bias);
        exact("linear_attn.norm.weight", config_.value_dim, weights.norm);  // the gated norm is stored plainly in every family
        matrix("linear_attn.out_proj.weight", {hidden, values}, weights.out_proj);
    }

    const TargetConfig& config_;
    std::string prefix_;
    std::vector<WeightDecl> decls_;
};

}  // namespace

TargetWeights undefined_target_weights(const TargetConfig& config, TargetPart part, std::int64_t num_layers) {
    if (part == TargetPart::kEmbeddingAndHead) num_layers = 0;
    if (num_layers < 0) num_layers = config.layers;
    DFLASH_CHECK(num_layers <= config.layers, "{} layers of a target that has {}", num_layers, config.layers);
    TargetWeights weights;
    weights.layers.resize(static_cast<std::size_t>(num_layers));
    return weights;
}

std::vector<WeightDecl> weight_table(const TargetConfig& config, TargetWeights& weights) {
    Table table(config);
    table.matrix(kEmbeddingName, {config.vocabulary, config.hidden}, weights.embedding);
    for (std::size_t i = 0; i < weights.layers.size(); ++i) table.layer(static_cast<std::int64_t>(i), weights.layers[i]);
    table.norm(kFinalNormName, config.hidden, weights.final_norm);
    if (!config.tied_head) table.matrix(kHeadName, {config.vocabulary, config.hidden}, weights.head);
    return table.take();
}

}  // namespace dflash
