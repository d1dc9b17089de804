// SPDX-License-Identifier: MIT
// The drafter while decoding: a cache of context keys and values per layer that grows by the committed tokens' features, and the block
// forward at the last committed token. Only context rows persist; block rows are scratch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "draft/draft_model.h"

namespace dflash {

struct DraftSessionSettings {
    std::int64_t max_tokens = 0;  // context capacity
    std::int64_t max_append = 0;  // most context rows appended at once (the prompt's chunk)
    Device device = {};
    bool record = false;  // replay blocks and the appending of their rows (kernels/recordings.h)
};
// Buffers "draft.session.*": caches and scratch live `lifetime`, the rotary tables, which are filled once, `persistent`.
std::vector<BufferSpec> draft_session_buffers(const DraftSpec& spec, const DraftSessionSettings& settings, Lifetime lifetime,
                                              Lifetime persistent);
std::vector<LinearShape> draft_session_linears(const DraftSpec& spec, const DraftSessionSettings& settings);

class DraftSession {
public:
    DraftSession(const DraftModel& model, const DraftSessionSettings& settings, const Arena& arena);
    ~DraftSession();
    void reset();
    // Appends features of the next committed tokens (positions length() ..). taps: (n, K*C).
    void append_context(const Context& context, const Tensor& taps);
    // Logits of the block anchored at position length() with token `anchor`: f32 (W, V); rows from first_weighted_slot() are proposals
    // (slot k for position length() + k + shift).
    Tensor propose(const Context& context, std::int32_t anchor);
    std::int64_t length() const;  // context rows = committed tokens before the anchor

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace dflash
