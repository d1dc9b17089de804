// SPDX-License-Identifier: MIT
#include "target/layers.h"

#include <algorithm>
#include <cmath>

#include "kernels/causal_attention.h"
#include "kernels/delta_rule.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/head_norm_rope.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"
#include "model/rope_table.h"
#include "tensor/working_dtype.h"

namespace dflash {
namespace {

// Cuts (rows, columns) views out of one buffer; without a buffer it only counts.
class Carver {
public:
    explicit Carver(const Tensor& memory) : memory_(memory) {}
    Tensor take(std::int64_t rows, std::int64_t columns) {
        const std::int64_t begin = used_;
        used_ += (rows * columns + kAlignment - 1) / kAlignment * kAlignment;
        if (!memory_.defined()) return {};
        return memory_.slice_rows(begin, used_ - begin).view({rows, columns});
    }
    std::int64_t used() const { return used_; }

private:
    static constexpr std::int64_t kAlignment = 128;  // elements: 256 bytes of bf16
    Tensor memory_;
    std::int64_t used_ = 0;
};

struct AttentionScratch {
    Tensor q_projected;  // (rows, H D), hybrid: (rows, H 2 D) with query and gate in turn
    Tensor q;            // (rows, H D): q_projected itself where there is no gate
    Tensor k, v;         // (rows, G D)
    Tensor out;          // (rows, H D)
};
AttentionScratch carve_attention(const TargetConfig& c, std::int64_t rows, Carver& carver) {
    AttentionScratch s;
    const bool gated = c.family == TargetFamily::kHybrid;
    s.q_projected = carver.take(rows, c.heads * c.head_dim * (gated ? 2 : 1));
    s.q = gated ? carver.take(rows, c.heads * c.head_dim) : s.q_projected;
    s.k = carver.take(rows, c.kv_heads * c.head_dim);
    s.v = carver.take(rows, c.kv_heads * c.head_dim);
    s.out = carver.take(rows, c.heads * c.head_dim);
    return s;
}

struct DeltaScratch {
    Tensor qkv_projected;  // (rows, channels)
    Tensor qkv;            // (rows, channels): after the convolution
    Tensor z;              // (rows, nv dv)
    Tensor b, a;           // (rows, nv)
    Tensor out;            // (rows, nv dv)
};
DeltaScratch carve_delta(const TargetConfig& c, std::int64_t rows, Carver& carver) {
    DeltaScratch s;
    s.qkv_projected = carver.take(rows, c.conv_channels());
    s.qkv = carver.take(rows, c.conv_channels());
    s.z = carver.take(rows, c.value_heads * c.value_dim);
    s.b = carver.take(rows, c.value_heads);
    s.a = carver.take(rows, c.value_heads);
    s.out = carver.take(rows, c.value_heads * c.value_dim);
    return s;
}

struct FeedForwardScratch {
    Tensor gate, up;  // (rows, F)
};
FeedForwardScratch carve_feed_forward(const TargetConfig& c, std::int64_t rows, Carver& carver) {
    FeedForwardScratch s;
    s.gate = carver.take(rows, c.intermediate);
    s.up = carver.take(rows, c.intermediate);
    return s;
}

bool has_kind(const TargetConfig& config, TargetLayerKind kind) {
    return std::find(config.layer_kinds.begin(), config.layer_kinds.end(), kind) != config.layer_kinds.end();
}

std::int64_t mixer_elements(const TargetConfig& config, std::int64_t rows) {
    Carver feed_forward{{}}, attention{{}}, delta{{}};
    carve_feed_forward(config, rows, feed_forward);
    if (has_kind(config, TargetLayerKind::kFullAttention)) carve_attention(config, rows, attention);
    if (has_kind(config, TargetLayerKind::kLinearAttention)) carve_delta(config, rows, delta);
    return std::max({feed_forward.used(), attention.used(), delta.used()});
}

DeltaRuleParams delta_params(const TargetConfig& config, const DeltaWeights& weights) {
    DeltaRuleParams p;
    p.a_log = weights.a_log;
    p.dt_bias = weights.dt_bias;
    p.key_heads = config.key_heads;
    p.value_heads = config.value_heads;
    p.key_dim = config.key_dim;
    p.value_dim = config.value_dim;
    return p;
}

// One layer's branches over the rows of a call.
class LayerCall {
public:
    LayerCall(const Context& context, const TargetLayers& layers, LayerMode mode, const LayerRows& rows, std::int64_t layer)
        : context_(context),
          config_(*layers.config),
          weights_(layers.weights->layers[static_cast<std::size_t>(layer)]),
          scratch_(layers.scratch),
          memory_(mode == LayerMode::kPacked ? LayerMemory{} : layers.memory[static_cast<std::size_t>(layer)]),
          step_state_(layers.step_state),
          mode_(mode),
          rows_(rows),
          hidden_(scratch_.hidden.slice_rows(0, rows.rows)),
          branch_(scratch_.branch.slice_rows(0, rows.rows)) {}

    // hidden -> branch
    void attention() const;
    void delta() const;
    void feed_forward() const;
    void replay(std::int64_t count) const;

private:
    Tensor live(const Tensor& tensor) const { return tensor.slice_rows(0, rows_.live); }
    void project(const Tensor& weight, const Tensor& y) const { linear_forward(context_, {hidden_, weight, y}); }
    void norm_and_rotate(const Tensor& x, std::int64_t head_stride, std::int64_t heads, const Tensor& norm, const Tensor& y) const;
    void mix(DeltaRuleParams rule, const Tensor& projected, const Tensor& state, bool recurrent, const DeltaScratch& s) const;

    const Context& context_;
    const TargetConfig& config_;
    const TargetLayerWeights& weights_;
    const LayerScratch& scratch_;
    LayerMemory memory_;
    Tensor step_state_;
    LayerMode mode_;
    LayerRows rows_;
    Tensor hidden_, branch_;
};

void LayerCall::norm_and_rotate(const Tensor& x, std::int64_t head_stride, std::int64_t heads, const Tensor& norm, const Tensor& y) const {
    const Shape shape{rows_.live, heads, config_.head_dim};
    HeadNormRopeForwardParams p;
    p.x = x.view(shape);
    p.x_head_stride = head_stride;
    p.x_row_stride = heads * head_stride;
    p.weight = norm;
    p.eps = static_cast<float>(config_.rms_norm_eps);
    p.weight_offset = config_.zero_centred_norms() ? 1.0F : 0.0F;
    p.positions = live(scratch_.positions);
    p.cos = scratch_.rope_cos;
    p.sin = scratch_.rope_sin;
    p.y = y.view(shape);
    head_norm_rope_forward(context_, p);
}

void LayerCall::attention() const {
    const AttentionWeights& w = weights_.attention;
    Carver carver(scratch_.mixer);
    const AttentionScratch s = carve_attention(config_, rows_.rows, carver);
    project(w.q_proj, s.q_projected);
    project(w.k_proj, s.k);
    project(w.v_proj, s.v);

    const bool gated = config_.family == TargetFamily::kHybrid;
    const std::int64_t head_dim = config_.head_dim;
    norm_and_rotate(s.q_projected, gated ? 2 * head_dim : head_dim, config_.heads, w.q_norm, s.q);
    norm_and_rotate(s.k, head_dim, config_.kv_heads, w.k_norm, s.k);
    const Shape key_shape{rows_.live, config_.kv_heads, head_dim};
    const Shape query_shape{rows_.rows, config_.heads, head_dim};
    CausalAttentionParams p;
    p.q = s.q.view(query_shape);
    p.k = s.k.view(key_shape);
    p.v = s.v.view(key_shape);
    if (memory_.k.defined()) {
        scatter_rows(context_, {p.k, live(scratch_.positions), {}, memory_.k});
        scatter_rows(context_, {p.v, live(scratch_.positions), {}, memory_.v});
        p.k = memory_.k;
        p.v = memory_.v;
    }
    p.key_begin = scratch_.key_begin.slice_rows(0, rows_.rows);
    p.key_end = scratch_.key_end.slice_rows(0, rows_.rows);
    p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
    p.out = s.out.view(query_shape);
    causal_attention_forward(context_, p);
    if (gated) {
        Tensor gate = s.q_projected.view(query_shape);
        gate.data = static_cast<char*>(gate.data) + static_cast<std::size_t>(head_dim) * dtype_bytes(gate.dtype);
        sigmoid_gate_forward(context_, {gate, 2 * config_.heads * head_dim, 2 * head_dim, p.out});
    }
    linear_forward(context_, {s.out, w.o_proj, branch_});
}

// Convolution and delta rule of the live rows: projected inputs -> s.out. `state` undefined: from zero at every document.
void LayerCall::mix(DeltaRuleParams rule, const Tensor& projected, const Tensor& state, bool recurrent, const DeltaScratch& s) const {
    const Tensor borders = scratch_.document_begin.slice_rows(0, rows_.documents + 1);
    causal_conv_silu_forward(context_, {live(projected), weights_.delta.conv, borders, memory_.conv_history, live(s.qkv)});
    rule.qkv = live(s.qkv);
    rule.b = live(rule.b);
    rule.a = live(rule.a);
    rule.document_begin = borders;
    rule.state = state;
    rule.out = live(s.out);
    recurrent ? delta_rule_recurrent_forward(context_, rule) : delta_rule_chunk_forward(context_, rule);
}

void LayerCall::delta() const {
    const DeltaWeights& w = weights_.delta;
    Carver carver(scratch_.mixer);
    const DeltaScratch s = carve_delta(config_, rows_.rows, carver);
    const bool step = mode_ == LayerMode::kStep;
    const Tensor projected = step ? memory_.step_qkv : s.qkv_projected;
    DeltaRuleParams rule = delta_params(config_, w);
    rule.b = step ? memory_.step_b : s.b;
    rule.a = step ? memory_.step_a : s.a;
    project(w.in_proj_qkv, projected);
    project(w.in_proj_z, s.z);
    project(w.in_proj_b, rule.b);
    project(w.in_proj_a, rule.a);
    if (step) copy_columns(context_, memory_.state, step_state_, 0);
    mix(rule, projected, step ? step_state_ : memory_.state, step, s);
    if (mode_ == LayerMode::kPrefill) conv_history_append(context_, live(projected), memory_.conv_history);
    fill_zero(context_, s.out.slice_rows(rows_.live, rows_.rows - rows_.live));

    const Shape heads{rows_.rows * config_.value_heads, config_.value_dim};
    const float eps = static_cast<float>(config_.rms_norm_eps);
    const Tensor out = s.out.view(heads);
    gated_rms_norm_forward(context_, {out, s.z.view(heads), w.norm, eps, config_.sigmoid_output_gate, out});
    linear_forward(context_, {s.out, w.out_proj, branch_});
}

void LayerCall::replay(std::int64_t count) const {
    Carver carver(scratch_.mixer);
    const DeltaScratch s = carve_delta(config_, count, carver);
    DeltaRuleParams rule = delta_params(config_, weights_.delta);
    rule.b = memory_.step_b;
    rule.a = memory_.step_a;
    mix(rule, memory_.step_qkv, memory_.state, true, s);
    conv_history_append(context_, memory_.step_qkv.slice_rows(0, count), memory_.conv_history);
}

void LayerCall::feed_forward() const {
    Carver carver(scratch_.mixer);
    const FeedForwardScratch s = carve_feed_forward(config_, rows_.rows, carver);
    project(weights_.gate_proj, s.gate);
    project(weights_.up_proj, s.up);
    swiglu_forward(context_, {s.gate, s.up, s.gate});
    linear_forward(context_, {s.gate, weights_.down_proj, branch_});
}

}  // namespace

std::vector<BufferSpec> layer_scratch_buffers(const TargetConfig& config, Device device, std::int64_t capacity, std::int64_t positions,
                                              const LayerScratchNames& names, Lifetime scratch, Lifetime persistent) {
    std::vector<BufferSpec> buffers;
    const auto add_buffer = [&](const std::string& name, DType dtype, const Shape& shape, Lifetime lifetime) {
        buffers.push_back({name, dtype, shape, Category::kTarget, lifetime});
    };
    for (const char* name : {"ids", "positions", "key_begin", "key_end"})
        add_buffer(names.scratch + name, DType::kI32, {capacity}, scratch);
    add_buffer(names.scratch + "document_begin", DType::kI32, {capacity + 1}, scratch);
    for (const char* name : {"residual", "hidden", "branch"}) {
        add_buffer(names.scratch + name, working_dtype(device), {capacity, config.hidden}, scratch);
    }
    add_buffer(names.scratch + "mixer", working_dtype(device), {mixer_elements(config, capacity)}, scratch);
    for (const char* name : {"cos", "sin"}) add_buffer(names.rope + name, DType::kF32, {positions, config.rotary_dims / 2}, persistent);
    return buffers;
}

LayerScratch bind_layer_scratch(const TargetConfig& config, const LayerScratchNames& names, const Arena& arena) {
    const auto bind = [&](const char* name) { return arena.tensor(names.scratch + name); };
    LayerScratch s;
    s.ids = bind("ids");
    s.positions = bind("positions");
    s.key_begin = bind("key_begin");
    s.key_end = bind("key_end");
    s.document_begin = bind("document_begin");
    s.residual = bind("residual");
    s.hidden = bind("hidden");
    s.branch = bind("branch");
    s.mixer = bind("mixer");
    s.rope_cos = arena.tensor(names.rope + "cos");
    s.rope_sin = arena.tensor(names.rope + "sin");
    fill_rope_table(rope_frequencies(config), s.rope_cos, s.rope_sin);
    return s;
}

std::vector<LinearShape> layer_linears(const TargetConfig& c, std::int64_t capacity) {
    std::vector<LinearShape> shapes;
    const auto add_product = [&](std::int64_t in, std::int64_t out) { shapes.push_back({capacity, in, out}); };
    if (has_kind(c, TargetLayerKind::kFullAttention)) {
        const std::int64_t queries = c.heads * c.head_dim;
        add_product(c.hidden, queries * (c.family == TargetFamily::kHybrid ? 2 : 1));
        add_product(c.hidden, c.kv_heads * c.head_dim);
        add_product(queries, c.hidden);
    }
    if (has_kind(c, TargetLayerKind::kLinearAttention)) {
        const std::int64_t values = c.value_heads * c.value_dim;
        add_product(c.hidden, c.conv_channels());
        add_product(c.hidden, values);
        add_product(c.hidden, c.value_heads);
        add_product(values, c.hidden);
    }
    add_product(c.hidden, c.intermediate);
    add_product(c.intermediate, c.hidden);
    return shapes;
}

std::size_t layer_workspace_bytes(const TargetConfig& config, Device device) {
    if (!has_kind(config, TargetLayerKind::kLinearAttention)) return 0;
    return delta_rule_workspace_bytes(device, delta_params(config, {}));
}

void TargetLayers::run(const Context& context, LayerMode mode, const LayerRows& rows, std::int64_t num_layers,
                       std::span<const std::int64_t> taps, const Tensor& taps_out, const Tensor& final_out) const {
    const Tensor residual = scratch.residual.slice_rows(0, rows.rows);
    const Tensor hidden = scratch.hidden.slice_rows(0, rows.rows);
    const Tensor branch = scratch.branch.slice_rows(0, rows.rows);
    const auto norm = [&](const Tensor& weight, const Tensor& added, const Tensor& y) {
        const float offset = config->zero_centred_norms() ? 1.0F : 0.0F;
        rms_norm_forward(context, {residual, weight, static_cast<float>(config->rms_norm_eps), offset, added, y, {}});
    };
    const auto tap = [&](std::int64_t layer) {
        const auto found = std::find(taps.begin(), taps.end(), layer);
        if (found != taps.end()) copy_columns(context, residual, taps_out, (found - taps.begin()) * config->hidden);
    };
    gather_rows(context, {weights->embedding, scratch.ids.slice_rows(0, rows.rows), residual});
    Tensor pending;  // the previous layer's last branch, not yet in the stream
    for (std::int64_t layer = 0; layer < num_layers; ++layer) {
        const TargetLayerWeights& w = weights->layers[static_cast<std::size_t>(layer)];
        const LayerCall call(context, *this, mode, rows, layer);
        norm(w.input_norm, pending, hidden);
        tap(layer - 1);
        is_delta(layer) ? call.delta() : call.attention();
        norm(w.post_norm, branch, hidden);
        call.feed_forward();
        pending = branch;
    }
    if (final_out.defined()) {
        norm(weights->final_norm, pending, final_out);
    } else if (pending.defined()) {
        add(context, pending, residual);
    }
    tap(num_layers - 1);
}

void TargetLayers::replay_delta(const Context& context, std::int64_t layer, std::int64_t count) const {
    LayerRows rows;
    rows.rows = rows.live = count;
    LayerCall(context, *this, LayerMode::kStep, rows, layer).replay(count);
}

}  // namespace dflash
