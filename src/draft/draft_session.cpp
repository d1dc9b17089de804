// SPDX-License-Identifier: MIT
#include "draft/draft_session.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "draft/draft_layer.h"
#include "kernels/embedding.h"
#include "kernels/recordings.h"
#include "kernels/rms_norm.h"
#include "model/rope_table.h"
#include "tensor/working_dtype.h"

namespace dflash {
namespace {

struct LayerCache {
    Tensor k, v;  // (max_tokens, G*D)
};

struct SessionViews {
    std::vector<LayerCache> caches;
    RopeTables rope;               // f32 (max_tokens + W, D/2)
    Tensor positions;              // i32 (max(max_append, W))
    Tensor fc_out, ctx;            // (max_append, C)
    Tensor k_new, v_new;           // (max_append, G*D): on their way into a cache
    Tensor ids;                    // i32 (W)
    Tensor begin_row, anchor_row;  // i32 (1)
    BlockActivations block;        // W rows, one set for all layers
    BlockScratch scratch;
    Tensor hidden;  // (W, C)
    Tensor logits;  // f32 (W, V)
};

// visit(name, dtype, shape, view) for every buffer of a session but the rotary tables: plans them, and binds them.
template <typename Visit>
void visit_session(const DraftSpec& spec, const DraftSessionSettings& settings, SessionViews& v, const Visit& visit) {
    const auto rows_of = [&](const std::string& name, std::int64_t rows, std::int64_t columns, Tensor& view) {
        visit(name, working_dtype(settings.device), Shape{rows, columns}, view);
    };
    const auto exact_rows_of = [&](const char* name, std::int64_t rows, std::int64_t columns, Tensor& view) {
        visit(name, DType::kF32, Shape{rows, columns}, view);
    };
    const auto ints = [&](const char* name, std::int64_t count, Tensor& view) { visit(name, DType::kI32, Shape{count}, view); };
    const std::int64_t w = spec.block_size;
    const std::int64_t queries = spec.heads * spec.head_dim;
    const std::int64_t keys = spec.kv_heads * spec.head_dim;
    v.caches.resize(spec.layers.size());
    for (std::size_t i = 0; i < spec.layers.size(); ++i) {
        rows_of(fmt::format("cache.{}.k", i), settings.max_tokens, keys, v.caches[i].k);
        rows_of(fmt::format("cache.{}.v", i), settings.max_tokens, keys, v.caches[i].v);
    }
    ints("positions", std::max(settings.max_append, w), v.positions);
    rows_of("fc_out", settings.max_append, spec.hidden, v.fc_out);
    rows_of("ctx", settings.max_append, spec.hidden, v.ctx);
    rows_of("k_new", settings.max_append, keys, v.k_new);
    rows_of("v_new", settings.max_append, keys, v.v_new);
    ints("ids", w, v.ids);
    ints("begin_row", 1, v.begin_row);
    ints("anchor_row", 1, v.anchor_row);
    rows_of("x", w, spec.hidden, v.block.x);
    rows_of("x_mid", w, spec.hidden, v.block.x_mid);
    rows_of("q", w, queries, v.block.q_raw);
    rows_of("k", w, keys, v.block.k_raw);
    rows_of("v", w, keys, v.block.v);
    rows_of("attention", w, queries, v.block.attention);
    exact_rows_of("lse", w, spec.heads, v.block.lse);
    rows_of("gate", w, spec.intermediate, v.block.gate);
    rows_of("up", w, spec.intermediate, v.block.up);
    rows_of("h", w, spec.hidden, v.scratch.h);
    rows_of("hidden", w, spec.hidden, v.hidden);
    exact_rows_of("logits", w, spec.vocabulary, v.logits);
    // Nothing is kept for backward: norms, rotation and the gate work in place.
    v.scratch.q = v.block.q_raw;
    v.scratch.k = v.block.k_raw;
    v.scratch.y = v.block.gate;
}

template <typename Visit>
void visit_rope(const DraftSpec& spec, const DraftSessionSettings& settings, SessionViews& v, const Visit& visit) {
    const Shape shape{settings.max_tokens + spec.block_size, spec.head_dim / 2};
    visit("rope_cos", DType::kF32, shape, v.rope.cos);
    visit("rope_sin", DType::kF32, shape, v.rope.sin);
}

}  // namespace

std::vector<BufferSpec> draft_session_buffers(const DraftSpec& spec, const DraftSessionSettings& settings, Lifetime lifetime,
                                              Lifetime persistent) {
    std::vector<BufferSpec> buffers;
    SessionViews unbound;
    const auto plan = [&](Lifetime lives) {
        return [&buffers, lives](const std::string& name, DType dtype, const Shape& shape, Tensor&) {
            buffers.push_back({"draft.session." + name, dtype, shape, Category::kActivations, lives});
        };
    };
    visit_session(spec, settings, unbound, plan(lifetime));
    visit_rope(spec, settings, unbound, plan(persistent));
    return buffers;
}

std::vector<LinearShape> draft_session_linears(const DraftSpec& spec, const DraftSessionSettings& settings) {
    const std::int64_t c = spec.hidden;
    const std::int64_t w = spec.block_size;
    const std::int64_t queries = spec.heads * spec.head_dim;
    return {
        LinearShape{settings.max_append, static_cast<std::int64_t>(spec.taps.size()) * c, c},
        LinearShape{std::max(settings.max_append, w), c, spec.kv_heads * spec.head_dim},
        LinearShape{w, c, queries},
        LinearShape{w, queries, c},
        LinearShape{w, c, spec.intermediate},
        LinearShape{w, spec.intermediate, c},
        LinearShape{w, c, spec.vocabulary},
    };
}

struct DraftSession::Impl {
    DraftModel model;
    DraftSessionSettings settings;
    SessionViews views;
    std::int64_t length = 0;
    Recordings blocks, appends;
    std::vector<std::int32_t> host;  // positions and ids on their way to the device, reserved once

    float eps() const { return static_cast<float>(model.spec.rms_norm_eps); }
    // Positions length .. length + count - 1.
    Tensor next_positions(const Context& context, std::int64_t count) {
        host.resize(static_cast<std::size_t>(count));
        std::iota(host.begin(), host.end(), static_cast<std::int32_t>(length));
        const Tensor positions = first_rows(views.positions, count);
        context.upload(std::span<const std::int32_t>(host), positions);
        return positions;
    }
    void upload_block(const Context& context, std::int32_t anchor);
    void append_rows(const Context& context, const Tensor& taps);
};

DraftSession::DraftSession(const DraftModel& model, const DraftSessionSettings& settings, const Arena& arena)
    : impl_(new Impl{model, settings, {}, 0, Recordings(settings.record), Recordings(settings.record), {}}) {
    SessionViews& views = impl_->views;
    const auto bind = [&](const std::string& name, DType, const Shape&, Tensor& view) { view = arena.tensor("draft.session." + name); };
    visit_session(model.spec, settings, views, bind);
    visit_rope(model.spec, settings, views, bind);
    impl_->host.reserve(static_cast<std::size_t>(views.positions.elements()));
    fill_rope_table({.theta = model.spec.rope_theta, .rotary_dims = model.spec.head_dim}, views.rope.cos, views.rope.sin);
}

DraftSession::~DraftSession() = default;

void DraftSession::reset() { impl_->length = 0; }
std::int64_t DraftSession::length() const { return impl_->length; }

void DraftSession::Impl::append_rows(const Context& context, const Tensor& taps) {
    const std::int64_t rows = taps.rows();
    const Tensor fc_out = first_rows(views.fc_out, rows);
    const Tensor ctx = first_rows(views.ctx, rows);
    const Tensor positions = next_positions(context, rows);
    const Tensor k = first_rows(views.k_new, rows);
    const Tensor v = first_rows(views.v_new, rows);
    const auto append = [&] {
        linear_forward(context, {taps, model.weights.fc, fc_out});
        rms_norm_forward(context, {fc_out, model.weights.hidden_norm, eps(), 0.0F, Tensor{}, ctx, Tensor{}});
        for (std::size_t i = 0; i < views.caches.size(); ++i) {
            context_keys_forward(context, model.spec, model.weights.layers[i], ctx, positions, views.rope, {k, Tensor{}, k, v});
            scatter_rows(context, {k, positions, {}, views.caches[i].k});
            scatter_rows(context, {v, positions, {}, views.caches[i].v});
        }
    };
    // A step appends its kept rows, of which there are few different numbers; prompts have any.
    rows <= model.spec.block_size ? appends.run(context, taps.data, rows, append) : append();
    length += rows;
}

void DraftSession::append_context(const Context& context, const Tensor& taps) {
    Impl& session = *impl_;
    const std::int64_t after = session.length + taps.rows();
    DFLASH_CHECK(after <= session.settings.max_tokens, "{} context rows in a session planned for {}", after, session.settings.max_tokens);
    if (after > session.model.spec.max_positions) {
        throw_bad_input("the text reaches {} tokens, but the drafter is made for {} positions: shorten it, or decode without a drafter",
                        after, session.model.spec.max_positions);
    }
    for (std::int64_t begin = 0; begin < taps.rows(); begin += session.settings.max_append) {
        session.append_rows(context, taps.slice_rows(begin, std::min(session.settings.max_append, taps.rows() - begin)));
    }
}

// Ids, and where the block stands in the context.
void DraftSession::Impl::upload_block(const Context& context, std::int32_t anchor) {
    host.assign(static_cast<std::size_t>(model.spec.block_size), model.spec.mask_token);
    host[0] = anchor;
    context.upload(std::span<const std::int32_t>(host), views.ids);
    const std::array<std::int32_t, 2> rows{0, static_cast<std::int32_t>(length)};
    context.upload(&rows[0], views.begin_row);
    context.upload(&rows[1], views.anchor_row);
}

Tensor DraftSession::propose(const Context& context, std::int32_t anchor) {
    Impl& session = *impl_;
    const DraftModel& model = session.model;
    const SessionViews& views = session.views;
    session.upload_block(context, anchor);
    BlockForwardParams params;
    params.spec = &model.spec;
    params.positions = session.next_positions(context, model.spec.block_size);
    params.rope = views.rope;
    params.begin_row = views.begin_row;
    params.anchor_row = views.anchor_row;
    params.num_live = 1;
    params.keep = views.block;
    params.scratch = views.scratch;
    params.out = views.block.x;  // read for the last time by the norm before
    session.blocks.run(context, nullptr, 0, [&] {
        gather_rows(context, {model.embedding, views.ids, views.block.x});
        for (std::size_t i = 0; i < views.caches.size(); ++i) {
            params.layer = i;
            params.weights = &model.weights.layers[i];
            if (i > 0) params.residual = views.block.x_mid;
            params.k_context = views.caches[i].k;  // whole: the anchor's row says how much of it is seen
            params.v_context = views.caches[i].v;
            block_forward(context, params);
        }
        rms_norm_forward(context, {views.block.x, model.weights.norm, session.eps(), 0.0F, views.block.x_mid, views.hidden, Tensor{}});
        linear_forward(context, {views.hidden, model.head, views.logits});
    });
    return views.logits;
}

}  // namespace dflash
