// SPDX-License-Identifier: MIT
#include "draft/draft_buffers.h"

#include <fmt/core.h>

#include <algorithm>

#include "kernels/head_norm_rope.h"
#include "kernels/loss_sums.h"
#include "kernels/rms_norm.h"
#include "tensor/working_dtype.h"

namespace dflash {
namespace {

// The sizes of a step and the phases in which its buffers live.
struct StepLayout {
    const DraftSpec& spec;
    const DraftStepSettings& settings;
    const DraftPhases& phases;

    std::int64_t block_rows() const { return settings.max_anchors * spec.block_size; }
    std::int64_t context_rows() const { return settings.max_tokens; }
    std::int64_t queries() const { return spec.heads * spec.head_dim; }
    std::int64_t keys() const { return spec.kv_heads * spec.head_dim; }
    std::int64_t chunk() const { return std::max<std::int64_t>(1, std::min(settings.loss_chunk, block_rows())); }
    DType dtype() const { return working_dtype(settings.device); }
    Lifetime forward_pass() const { return {phases.forward.front(), phases.forward.back()}; }
    Lifetime backward_pass() const { return {phases.backward.back(), phases.backward.front()}; }
    Lifetime whole() const { return {phases.context, phases.context_backward}; }
};

template <typename Visit>
void visit_inputs(const StepLayout& s, StepViews& v, const Visit& visit) {
    const auto input = [&](const char* name, std::int64_t rows, Tensor& view) {
        visit(name, DType::kI32, Shape{rows}, Category::kInput, s.whole(), view);
    };
    input("ids", s.block_rows(), v.ids);
    input("positions", s.block_rows(), v.positions);
    input("context_positions", s.context_rows(), v.context_positions);
    input("begin_row", s.settings.max_anchors, v.begin_row);
    input("anchor_row", s.settings.max_anchors, v.anchor_row);
    // The longest document fills the row, and the last block reaches W beyond it.
    const Shape table{s.context_rows() + s.spec.block_size, s.spec.head_dim / 2};
    visit("rope_cos", DType::kF32, table, Category::kInput, s.phases.persistent, v.rope.cos);
    visit("rope_sin", DType::kF32, table, Category::kInput, s.phases.persistent, v.rope.sin);
    visit("sums", DType::kF64, Shape{loss_sums_size(s.spec.block_size)}, Category::kInput, s.phases.persistent, v.sums);
}

// What one layer keeps of its attention, under `prefix`.
struct AttentionPart {
    template <typename Visit>
    static void visit(const StepLayout& s, const std::string& prefix, Lifetime life, LayerViews& v, const Visit& visit) {
        const auto kept = [&](const char* name, DType dtype, std::int64_t rows, std::int64_t columns, Tensor& view) {
            visit(prefix + name, dtype, Shape{rows, columns}, Category::kActivations, life, view);
        };
        const std::int64_t n = s.block_rows();
        kept("in_rstd", DType::kF32, n, 1, v.block.in_rstd);
        kept("q_raw", s.dtype(), n, s.queries(), v.block.q_raw);
        kept("q_rstd", DType::kF32, n, s.spec.heads, v.block.q_rstd);
        kept("k_raw", s.dtype(), n, s.keys(), v.block.k_raw);
        kept("k_rstd", DType::kF32, n, s.spec.kv_heads, v.block.k_rstd);
        kept("v", s.dtype(), n, s.keys(), v.block.v);
        kept("attention", s.dtype(), n, s.queries(), v.block.attention);
        kept("lse", DType::kF32, n, s.spec.heads, v.block.lse);
        kept("context_k_raw", s.dtype(), s.context_rows(), s.keys(), v.keys.k_raw);
        kept("context_k_rstd", DType::kF32, s.context_rows(), s.spec.kv_heads, v.keys.rstd);
        kept("context_v", s.dtype(), s.context_rows(), s.keys(), v.keys.v);
    }
    static void share(const LayerViews& from, LayerViews& to) {
        const BlockActivations mlp = to.block;
        to = from;
        to.block.x_mid = mlp.x_mid;
        to.block.post_rstd = mlp.post_rstd;
        to.block.gate = mlp.gate;
        to.block.up = mlp.up;
    }
};

// And of what follows it.
struct MlpPart {
    template <typename Visit>
    static void visit(const StepLayout& s, const std::string& prefix, Lifetime life, LayerViews& v, const Visit& visit) {
        const auto kept = [&](const char* name, DType dtype, std::int64_t columns, Tensor& view) {
            visit(prefix + name, dtype, Shape{s.block_rows(), columns}, Category::kActivations, life, view);
        };
        kept("x_mid", s.dtype(), s.spec.hidden, v.block.x_mid);
        kept("post_rstd", DType::kF32, 1, v.block.post_rstd);
        kept("gate", s.dtype(), s.spec.intermediate, v.block.gate);
        kept("up", s.dtype(), s.spec.intermediate, v.block.up);
    }
    static void share(const LayerViews& from, LayerViews& to) {
        to.block.x_mid = from.block.x_mid;
        to.block.post_rstd = from.block.post_rstd;
        to.block.gate = from.block.gate;
        to.block.up = from.block.up;
    }
};

// One part of every layer: kept from its forward to its backward; or, where it is made again, one set for each direction.
template <typename Part, typename Visit>
void visit_part(const StepLayout& s, bool made_again, StepViews& v, const Visit& visit) {
    for (std::size_t i = 0; i < v.forward.size(); ++i) {
        if (!made_again) {
            Part::visit(s, fmt::format("layer.{}.", i), {s.phases.forward[i], s.phases.backward[i]}, v.forward[i], visit);
            Part::share(v.forward[i], v.backward[i]);
        } else if (i == 0) {
            Part::visit(s, "forward.", s.forward_pass(), v.forward[0], visit);
            Part::visit(s, "backward.", s.backward_pass(), v.backward[0], visit);
        } else {
            Part::share(v.forward[0], v.forward[i]);
            Part::share(v.backward[0], v.backward[i]);
        }
    }
}

template <typename Visit>
void visit_layers(const StepLayout& s, StepViews& v, const Visit& visit) {
    const std::size_t layers = s.spec.layers.size();
    v.x.resize(layers + 1);
    v.forward.resize(layers);
    v.backward.resize(layers);
    for (std::size_t i = 0; i <= layers; ++i) {
        const int first = s.phases.forward[i == 0 ? 0 : i - 1];
        const int last = s.phases.backward[std::min(i, layers - 1)];
        visit(fmt::format("x.{}", i), s.dtype(), Shape{s.block_rows(), s.spec.hidden}, Category::kActivations, Lifetime{first, last},
              v.x[i]);
    }
    visit_part<AttentionPart>(s, s.settings.recompute != Recompute::kNone, v, visit);
    visit_part<MlpPart>(s, s.settings.recompute == Recompute::kLayer, v, visit);
}

template <typename Visit>
void visit_loss(const StepLayout& s, LossViews& v, const Visit& visit) {
    const Lifetime life{s.phases.loss, s.phases.loss};
    const auto chunk = [&](const char* name, std::int64_t columns, Tensor& view) {
        visit(name, s.dtype(), Shape{s.chunk(), columns}, Category::kLossChunk, life, view);
    };
    chunk("logits", s.spec.vocabulary, v.logits);
    chunk("chunk_hidden", s.spec.hidden, v.hidden);
    if (s.settings.loss == LossKind::kKl) {
        chunk("teacher_logits", s.spec.vocabulary, v.teacher_logits);
        chunk("teacher_state", s.spec.hidden, v.teacher_state);
    }
    const auto list = [&](const char* name, DType dtype, Tensor& view) {
        visit(name, dtype, Shape{s.block_rows()}, Category::kLossChunk, life, view);
    };
    list("rows", DType::kI32, v.rows);
    list("teacher_rows", DType::kI32, v.teacher_rows);
    list("labels", DType::kI32, v.labels);
    list("loss", DType::kF32, v.loss);
    list("label_prob", DType::kF32, v.label_prob);
    list("correct", DType::kI32, v.correct);
    list("weight", DType::kF32, v.weight);
}

template <typename Visit>
void visit_passes(const StepLayout& s, StepViews& v, const Visit& visit) {
    const auto buffer = [&](const char* name, std::int64_t rows, std::int64_t columns, Lifetime life, Tensor& view) {
        visit(name, s.dtype(), Shape{rows, columns}, Category::kActivations, life, view);
    };
    const auto row_values = [&](const char* name, std::int64_t rows, std::int64_t columns, Lifetime life, Tensor& view) {
        visit(name, DType::kF32, Shape{rows, columns}, Category::kActivations, life, view);
    };
    const DraftSpec& spec = s.spec;
    const DraftPhases& phases = s.phases;
    const std::int64_t n = s.block_rows();
    const std::int64_t t = s.context_rows();
    buffer("fc_out", t, spec.hidden, s.whole(), v.fc_out);
    row_values("fc_rstd", t, 1, s.whole(), v.fc_rstd);
    buffer("ctx", t, spec.hidden, {phases.context, phases.backward.front()}, v.ctx);
    buffer("forward.h", n, spec.hidden, s.forward_pass(), v.scratch.h);
    buffer("forward.q", n, s.queries(), s.forward_pass(), v.scratch.q);
    buffer("forward.k", n, s.keys(), s.forward_pass(), v.scratch.k);
    buffer("forward.y", n, spec.intermediate, s.forward_pass(), v.scratch.y);
    buffer("forward.k_context", t, s.keys(), s.forward_pass(), v.k_context);
    buffer("hidden", n, spec.hidden, {phases.forward.back(), phases.loss}, v.hidden);
    row_values("final_rstd", n, 1, {phases.forward.back(), phases.backward.back()}, v.final_rstd);
    buffer("d_x", n, spec.hidden, {phases.loss, phases.backward.front()}, v.d_x);
    buffer("d_ctx", t, spec.hidden, {phases.backward.back(), phases.context_backward}, v.d_ctx);
    buffer("d_fc_out", t, spec.hidden, {phases.context_backward, phases.context_backward}, v.d_fc_out);
    LayerBackwardScratch& back = v.back;
    buffer("backward.h", n, spec.hidden, s.backward_pass(), back.again.h);
    buffer("backward.q", n, s.queries(), s.backward_pass(), back.again.q);
    buffer("backward.k", n, s.keys(), s.backward_pass(), back.again.k);
    buffer("backward.y", n, spec.intermediate, s.backward_pass(), back.again.y);
    buffer("backward.k_context", t, s.keys(), s.backward_pass(), back.k_context);
    buffer("backward.d_h", n, spec.hidden, s.backward_pass(), back.d_h);
    buffer("backward.d_attention", n, s.queries(), s.backward_pass(), back.d_attention);
    row_values("backward.delta", n, spec.heads, s.backward_pass(), back.delta);
    buffer("backward.d_q", n, s.queries(), s.backward_pass(), back.d_q);
    buffer("backward.d_k", n, s.keys(), s.backward_pass(), back.d_k);
    buffer("backward.d_v", n, s.keys(), s.backward_pass(), back.d_v);
    buffer("backward.d_k_context", t, s.keys(), s.backward_pass(), back.d_k_context);
    buffer("backward.d_v_context", t, s.keys(), s.backward_pass(), back.d_v_context);
}

// visit(name, dtype, shape, category, lifetime, view) for every buffer.
template <typename Visit>
void visit_all(const StepLayout& layout, StepViews& views, const Visit& visit) {
    visit_inputs(layout, views, visit);
    visit_passes(layout, views, visit);
    visit_layers(layout, views, visit);
    visit_loss(layout, views.loss, visit);
}

}  // namespace

std::vector<BufferSpec> draft_step_buffers(const DraftSpec& spec, const DraftStepSettings& settings, const DraftPhases& phases) {
    const std::size_t layers = spec.layers.size();
    DFLASH_CHECK(phases.forward.size() == layers && phases.backward.size() == layers, "phases for {} and {} of {} layers",
                 phases.forward.size(), phases.backward.size(), layers);
    std::vector<BufferSpec> buffers;
    StepViews unbound;
    visit_all(StepLayout{spec, settings, phases}, unbound,
              [&](const std::string& name, DType dtype, const Shape& shape, Category category, Lifetime lifetime, Tensor&) {
                  buffers.push_back({"draft.step." + name, dtype, shape, category, lifetime});
              });
    return buffers;
}

StepViews bind_step_views(const DraftSpec& spec, const DraftStepSettings& settings, const Arena& arena) {
    DraftPhases unused;
    unused.forward.assign(spec.layers.size(), 0);
    unused.backward.assign(spec.layers.size(), 0);
    StepViews views;
    visit_all(StepLayout{spec, settings, unused}, views,
              [&](const std::string& name, DType dtype, const Shape& shape, Category, Lifetime, Tensor& view) {
                  view = arena.tensor("draft.step." + name);
                  DFLASH_CHECK(view.dtype == dtype && view.shape == shape, "buffer {} was planned as {}, not {}", name,
                               view.shape.to_string(), shape.to_string());
              });
    for (std::size_t i = 0; i < spec.layers.size(); ++i) views.forward[i].block.x = views.backward[i].block.x = views.x[i];
    return views;
}

std::vector<LinearShape> draft_step_linears(const DraftSpec& spec, const DraftStepSettings& settings) {
    const DraftPhases unused;
    const StepLayout s{spec, settings, unused};
    const auto trained = [](std::int64_t rows, std::int64_t in, std::int64_t out) { return LinearShape{rows, in, out, true, true, true}; };
    const std::int64_t n = s.block_rows();
    const std::int64_t t = s.context_rows();
    const std::int64_t c = spec.hidden;
    return {
        LinearShape{t, static_cast<std::int64_t>(spec.taps.size()) * c, c, true, false, true},  // fc: features are frozen
        trained(t, c, s.keys()),
        trained(n, c, s.keys()),
        trained(n, c, s.queries()),
        trained(n, s.queries(), c),
        trained(n, c, spec.intermediate),
        trained(n, spec.intermediate, c),
        LinearShape{s.chunk(), c, spec.vocabulary, true, true, false},  // head: frozen
    };
}

std::size_t draft_step_workspace_bytes(const DraftSpec& spec, const DraftStepSettings& settings) {
    return std::max({linear_workspace_bytes(settings.device, draft_step_linears(spec, settings)),
                     rms_norm_backward_workspace_bytes(settings.device, spec.hidden),
                     head_norm_rope_backward_workspace_bytes(settings.device, spec.head_dim)});
}

LayerViews live_views(const LayerViews& layer, std::int64_t rows, std::int64_t context_rows) {
    LayerViews live = layer;
    BlockActivations& block = live.block;
    for (Tensor* view : {&block.x, &block.x_mid, &block.in_rstd, &block.q_raw, &block.q_rstd, &block.k_raw, &block.k_rstd, &block.v,
                         &block.attention, &block.lse, &block.post_rstd, &block.gate, &block.up}) {
        *view = first_rows(*view, rows);
    }
    for (Tensor* view : {&live.keys.k_raw, &live.keys.rstd, &live.keys.v}) *view = first_rows(*view, context_rows);
    return live;
}

BlockScratch live_views(const BlockScratch& scratch, std::int64_t rows) {
    return {first_rows(scratch.h, rows), first_rows(scratch.q, rows), first_rows(scratch.k, rows), first_rows(scratch.y, rows)};
}

LayerBackwardScratch live_views(const LayerBackwardScratch& scratch, std::int64_t rows, std::int64_t context_rows) {
    LayerBackwardScratch live = scratch;
    live.again = live_views(scratch.again, rows);
    for (Tensor* view : {&live.d_h, &live.d_attention, &live.delta, &live.d_q, &live.d_k, &live.d_v}) *view = first_rows(*view, rows);
    for (Tensor* view : {&live.k_context, &live.d_k_context, &live.d_v_context}) *view = first_rows(*view, context_rows);
    return live;
}

}  // namespace dflash
