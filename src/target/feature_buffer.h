// SPDX-License-Identifier: MIT
// The planned memory that stored features are read into, one micro-batch at a time. On a GPU they come from page-locked host memory, on a
// stream of their own: a copy begins when the last op that reads the micro-batch before is done, beside whatever was launched after that op
// (the optimizer), and the ops launched after it wait for it. Neither waits for the host.
#pragma once

#include "target/features.h"
#include "tensor/cuda_runtime.h"

namespace dflash {

class FeatureBuffer {
public:
    // `memory`: taps (S, K*C) and, if wanted, final_state (S, C), for the largest S. Sources that take turns share one buffer.
    explicit FeatureBuffer(const TargetFeatures& memory);
    ~FeatureBuffer();
    FeatureBuffer(const FeatureBuffer&) = delete;
    FeatureBuffer& operator=(const FeatureBuffer&) = delete;

    Device device() const { return memory_.taps.device; }
    bool has_final_state() const { return memory_.final_state.defined(); }
    const TargetFeatures& memory() const { return memory_; }

    // CUDA only. Nothing launched on `context` from here on reads the micro-batch that is there now.
    void release(const Context& context);
    // CUDA only: `host` (page-locked, S rows) into the first S rows, for all that is launched on `context` from here on; releases the
    // micro-batch before, if nobody has. `sent` is recorded behind the copy: then the host rows may be written again.
    void send(const Context& context, const TargetFeatures& host, void* sent);

private:
    TargetFeatures memory_;
    Stream copies_;
    cuda::OwnedEvent released_;
    bool is_released_ = true;
};

}  // namespace dflash
