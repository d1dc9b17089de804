// SPDX-License-Identifier: MIT
// The target while decoding one sequence: prefill a prompt, verify a block of tokens, keep the accepted ones and undo the rest (KV length,
// convolution window and recurrent state alike). After the prompt the delta rule runs in recurrent form, and every step runs the same
// row tile (`step_rows`), whether it verifies a draft or decodes plainly, so that both use the same products: drafted greedy output
// equals plain greedy output exactly. On the GPU the same holds: the products of a step have one shape, and no launch depends on how long
// the text is.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/context.h"
#include "kernels/linear.h"
#include "model/target_config.h"
#include "model/target_weights.h"
#include "tensor/arena.h"
#include "tensor/plan.h"

namespace dflash {

struct TargetSessionSettings {
    std::int64_t max_tokens = 0;     // prompt + generated, capacity of the caches
    std::int64_t max_prompt = 0;     // prefill runs in chunks of at most this many rows (<= max_tokens)
    std::int64_t step_rows = 1;      // rows of a verify step: the block width W (or W + 1 with alignment shift 1)
    std::vector<std::int64_t> taps;  // layers whose residual is handed to the drafter; may be empty
    Device device = {};
    bool record = false;  // replay steps (kernels/recordings.h); graphs take driver memory beside the plan
};

// Buffers "target_session.*": caches, states and scratch live `lifetime`, the rotary tables ("target_session.rope.*"), which are filled
// once, `persistent`. And their linears, and their extra workspace.
std::vector<BufferSpec> target_session_buffers(const TargetConfig& config, const TargetSessionSettings& settings, Lifetime lifetime,
                                               Lifetime persistent);
std::vector<LinearShape> target_session_linears(const TargetConfig& config, const TargetSessionSettings& settings);
std::size_t target_session_workspace_bytes(const TargetConfig& config, const TargetSessionSettings& settings);

class TargetSession {
public:
    TargetSession(const TargetConfig& config, const TargetWeights& weights, const TargetSessionSettings& settings, const Arena& arena);
    ~TargetSession();

    // Starts a new sequence. Afterwards length() == ids.size(), logits() has one row (the last prompt token's), and taps() holds the
    // features of the prompt's rows. Throws Error(kBadInput) when the prompt does not fit.
    void prefill(const Context& context, std::span<const std::int32_t> ids);
    // Runs 1 .. step_rows further tokens. logits() and taps() then have tokens.size() rows. Nothing is committed yet.
    void step(const Context& context, std::span<const std::int32_t> tokens);
    // Keeps the first `count` tokens of the last step and undoes the others.
    void commit(const Context& context, std::int64_t count);

    std::int64_t length() const;  // committed tokens
    Tensor logits() const;        // f32 (rows of the last call, V)
    Tensor taps() const;          // (rows of the last call, K*C)
    // Test hook: recurrent state (nv, dk, dv) and convolution history of a delta layer after the committed tokens.
    Tensor recurrent_state(std::int64_t layer) const;
    Tensor conv_history(std::int64_t layer) const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace dflash
