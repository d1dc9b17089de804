// SPDX-License-Identifier: MIT
#include "target/target_session.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/causal_attention.h"
#include "kernels/elementwise.h"
#include "kernels/recordings.h"
#include "kernels/rms_norm.h"
#include "target/layers.h"
#include "tensor/working_dtype.h"

namespace dflash {
namespace {

const LayerScratchNames kNames{"target_session.", "target_session.rope."};

// Rows that every step runs: a power of two, so that the products are one piece and a token's bits do not depend on its row.
std::int64_t tile_rows(const TargetSessionSettings& settings) {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(settings.step_rows)));
}

std::int64_t scratch_rows(const TargetSessionSettings& settings) { return std::max(settings.max_prompt, tile_rows(settings)); }

std::int64_t taps_width(const TargetConfig& config, const TargetSessionSettings& settings) {
    return std::ssize(settings.taps) * config.hidden;
}

struct NamedView {
    std::string name;
    DType dtype;
    Shape shape;
    Tensor* view;
};

// What one layer keeps: names, shapes and the places of their views.
std::vector<NamedView> memory_table(const TargetConfig& c, const TargetSessionSettings& settings, std::int64_t layer, LayerMemory& memory) {
    const std::string prefix = fmt::format("target_session.layers.{}.", layer);
    const DType working = working_dtype(settings.device);
    if (c.layer_kinds[static_cast<std::size_t>(layer)] == TargetLayerKind::kFullAttention) {
        const Shape cache{settings.max_tokens, c.kv_heads, c.head_dim};
        return {{prefix + "k", working, cache, &memory.k}, {prefix + "v", working, cache, &memory.v}};
    }
    const std::int64_t tile = tile_rows(settings);
    return {{prefix + "conv_history", working, {c.conv_taps - 1, c.conv_channels()}, &memory.conv_history},
            {prefix + "state", DType::kF32, {c.value_heads, c.key_dim, c.value_dim}, &memory.state},
            {prefix + "step_qkv", working, {tile, c.conv_channels()}, &memory.step_qkv},
            {prefix + "step_b", working, {tile, c.value_heads}, &memory.step_b},
            {prefix + "step_a", working, {tile, c.value_heads}, &memory.step_a}};
}

// Everything else a session keeps.
struct SessionViews {
    Tensor step_state, taps, final_state, logits;
};
std::vector<NamedView> view_table(const TargetConfig& c, const TargetSessionSettings& settings, SessionViews& views) {
    const std::int64_t tile = tile_rows(settings);
    const DType working = working_dtype(settings.device);
    std::vector<NamedView> table = {{"target_session.final_state", working, {tile, c.hidden}, &views.final_state},
                                    {"target_session.logits", DType::kF32, {tile, c.vocabulary}, &views.logits}};
    if (c.key_heads > 0) {
        table.push_back({"target_session.step_state", DType::kF32, {c.value_heads, c.key_dim, c.value_dim}, &views.step_state});
    }
    if (!settings.taps.empty()) {
        const Shape taps{std::max(settings.max_tokens, tile), taps_width(c, settings)};
        table.push_back({"target_session.taps", working, taps, &views.taps});
    }
    return table;
}

}  // namespace

std::vector<BufferSpec> target_session_buffers(const TargetConfig& config, const TargetSessionSettings& settings, Lifetime lifetime,
                                               Lifetime persistent) {
    std::vector<BufferSpec> buffers =
        layer_scratch_buffers(config, settings.device, scratch_rows(settings), settings.max_tokens, kNames, lifetime, persistent);
    const auto add_table = [&](const std::vector<NamedView>& table) {
        for (const NamedView& entry : table) buffers.push_back({entry.name, entry.dtype, entry.shape, Category::kTarget, lifetime});
    };
    LayerMemory memory;
    SessionViews views;
    for (std::int64_t layer = 0; layer < config.layers; ++layer) add_table(memory_table(config, settings, layer, memory));
    add_table(view_table(config, settings, views));
    return buffers;
}

std::vector<LinearShape> target_session_linears(const TargetConfig& config, const TargetSessionSettings& settings) {
    std::vector<LinearShape> shapes = layer_linears(config, scratch_rows(settings));
    shapes.push_back({tile_rows(settings), config.hidden, config.vocabulary});
    return shapes;
}

std::size_t target_session_workspace_bytes(const TargetConfig& config, const TargetSessionSettings& settings) {
    return std::max(
        layer_workspace_bytes(config, settings.device),
        causal_attention_workspace_bytes(settings.device, scratch_rows(settings), settings.max_tokens, config.heads, config.head_dim));
}

struct TargetSession::Impl {
    explicit Impl(bool record) : steps(record), commits(record) {}

    TargetConfig config;
    TargetWeights weights;
    TargetSessionSettings settings;
    TargetLayers layers;
    SessionViews views;
    std::int64_t length = 0;     // committed tokens
    std::int64_t step_rows = 0;  // tokens of the last step that are neither kept nor undone yet
    std::int64_t logits_rows = 0, taps_rows = 0;
    Recordings steps, commits;       // by tokens
    std::vector<std::int32_t> host;  // of place(): one column of the scratch at a time, reserved once

    // Places ids at positions length .. in the scratch; rows from ids.size() to `rows` fill the tile and see nothing.
    LayerRows place(const Context& context, std::span<const std::int32_t> ids, std::int64_t rows);
    void upload_borders(const Context& context, std::int64_t rows) const;
    void forget(const Context& context);
    Tensor taps_part(std::int64_t begin, std::int64_t rows) const {
        return views.taps.defined() ? views.taps.slice_rows(begin, rows) : Tensor{};
    }
};

LayerRows TargetSession::Impl::place(const Context& context, std::span<const std::int32_t> ids, std::int64_t rows) {
    const LayerScratch& s = layers.scratch;
    const std::int64_t live = std::ssize(ids);
    const auto upload = [&](const Tensor& tensor, const auto& of_live_row) {
        host.assign(static_cast<std::size_t>(rows), 0);
        for (std::int64_t row = 0; row < live; ++row) host[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(of_live_row(row));
        context.upload(std::span<const std::int32_t>(host), tensor.slice_rows(0, rows));
    };
    upload(s.ids, [&](std::int64_t row) { return ids[static_cast<std::size_t>(row)]; });
    upload(s.positions, [&](std::int64_t row) { return length + row; });
    upload(s.key_begin, [](std::int64_t) { return 0; });
    upload(s.key_end, [&](std::int64_t row) { return length + row + 1; });
    upload_borders(context, live);
    return {rows, live, 1};
}

void TargetSession::Impl::upload_borders(const Context& context, std::int64_t rows) const {
    const std::array<std::int32_t, 2> borders{0, static_cast<std::int32_t>(rows)};
    context.upload(std::span<const std::int32_t>(borders), layers.scratch.document_begin.slice_rows(0, 2));
}

void TargetSession::Impl::forget(const Context& context) {
    length = step_rows = logits_rows = taps_rows = 0;
    for (const LayerMemory& memory : layers.memory) {
        if (!memory.state.defined()) continue;
        fill_zero(context, memory.state);
        fill_zero(context, memory.conv_history);
    }
}

TargetSession::TargetSession(const TargetConfig& config, const TargetWeights& weights, const TargetSessionSettings& settings,
                             const Arena& arena)
    : impl_(std::make_unique<Impl>(settings.record)) {
    DFLASH_CHECK(settings.step_rows >= 1 && settings.max_prompt >= 1 && settings.max_prompt <= settings.max_tokens,
                 "a session of {} tokens, prompts in chunks of {}, {} rows a step", settings.max_tokens, settings.max_prompt,
                 settings.step_rows);
    DFLASH_CHECK(std::ssize(weights.layers) == config.layers, "decoding needs all {} layers, {} have weights", config.layers,
                 weights.layers.size());
    impl_->config = config;
    impl_->weights = weights;
    impl_->settings = settings;
    impl_->host.reserve(static_cast<std::size_t>(scratch_rows(settings)));
    TargetLayers& layers = impl_->layers;
    layers.config = &impl_->config;
    layers.weights = &impl_->weights;
    layers.scratch = bind_layer_scratch(config, kNames, arena);
    layers.memory.resize(static_cast<std::size_t>(config.layers));
    const auto bind = [&](const std::vector<NamedView>& table) {
        for (const NamedView& entry : table) *entry.view = arena.tensor(entry.name);
    };
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
        bind(memory_table(config, settings, layer, layers.memory[static_cast<std::size_t>(layer)]));
    }
    bind(view_table(config, settings, impl_->views));
    layers.step_state = impl_->views.step_state;
}

TargetSession::~TargetSession() = default;

void TargetSession::prefill(const Context& context, std::span<const std::int32_t> ids) {
    Impl& m = *impl_;
    const std::int64_t tokens = std::ssize(ids);
    if (tokens == 0) throw_bad_input("the prompt is empty: it must have at least one token");
    if (tokens > m.settings.max_tokens) {
        throw_bad_input("the prompt has {} tokens, the caches hold {}: shorten it or allow more tokens", tokens, m.settings.max_tokens);
    }
    m.forget(context);
    std::int64_t rows = 0;
    for (std::int64_t begin = 0; begin < tokens; begin += rows) {
        rows = std::min(m.settings.max_prompt, tokens - begin);
        const LayerRows placed = m.place(context, ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(rows)), rows);
        m.layers.run(context, LayerMode::kPrefill, placed, m.config.layers, m.settings.taps, m.taps_part(begin, rows), {});
        m.length += rows;
    }
    const Tensor last = m.layers.scratch.residual.slice_rows(rows - 1, 1);
    const Tensor final_state = m.views.final_state.slice_rows(0, 1);
    const float offset = m.config.zero_centred_norms() ? 1.0F : 0.0F;
    rms_norm_forward(context, {last, m.weights.final_norm, static_cast<float>(m.config.rms_norm_eps), offset, {}, final_state, {}});
    linear_forward(context, {final_state, m.weights.head, m.views.logits.slice_rows(0, 1)});
    m.logits_rows = 1;
    m.taps_rows = tokens;
}

void TargetSession::step(const Context& context, std::span<const std::int32_t> tokens) {
    Impl& m = *impl_;
    const std::int64_t count = std::ssize(tokens);
    const std::int64_t tile = tile_rows(m.settings);
    DFLASH_CHECK(m.length > 0, "step before prefill");
    DFLASH_CHECK(count >= 1 && count <= m.settings.step_rows, "a step of {} tokens, it takes 1 to {}", count, m.settings.step_rows);
    DFLASH_CHECK(m.length + count <= m.settings.max_tokens, "{} tokens after {}: the caches hold {}", count, m.length,
                 m.settings.max_tokens);
    const LayerRows placed = m.place(context, tokens, tile);
    m.steps.run(context, nullptr, count, [&] {
        m.layers.run(context, LayerMode::kStep, placed, m.config.layers, m.settings.taps, m.taps_part(0, tile), m.views.final_state);
        linear_forward(context, {m.views.final_state, m.weights.head, m.views.logits});
    });
    m.step_rows = m.logits_rows = m.taps_rows = count;
}

void TargetSession::commit(const Context& context, std::int64_t count) {
    Impl& m = *impl_;
    DFLASH_CHECK(count >= 0 && count <= m.step_rows, "commit of {} tokens after a step of {}", count, m.step_rows);
    if (count > 0 && m.views.step_state.defined()) {
        m.upload_borders(context, count);
        m.commits.run(context, nullptr, count, [&] {
            for (std::int64_t layer = 0; layer < m.config.layers; ++layer) {
                if (m.layers.is_delta(layer)) m.layers.replay_delta(context, layer, count);
            }
        });
    }
    m.length += count;  // keys and values beyond it are overwritten by the next step
    m.step_rows = 0;
}

std::int64_t TargetSession::length() const { return impl_->length; }

Tensor TargetSession::logits() const { return impl_->views.logits.slice_rows(0, impl_->logits_rows); }

Tensor TargetSession::taps() const { return impl_->taps_part(0, impl_->taps_rows); }

Tensor TargetSession::recurrent_state(std::int64_t layer) const { return impl_->layers.memory[static_cast<std::size_t>(layer)].state; }

Tensor TargetSession::conv_history(std::int64_t layer) const { return impl_->layers.memory[static_cast<std::size_t>(layer)].conv_history; }

}  // namespace dflash
