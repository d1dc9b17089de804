// SPDX-License-Identifier: MIT
// What the frozen target computes for one micro-batch, and where it comes from. Live (this device), stored (a features folder) and,
// later, another device are sources behind one interface.
#pragma once

#include "data/packed_batch.h"
#include "kernels/context.h"
#include "tensor/tensor.h"

namespace dflash {

struct TargetFeatures {
    Tensor taps;         // (S, K*C), the device's working dtype: residual after each tapped layer, concatenated in tap order; never normed
    Tensor final_state;  // optional (S, C): after the last norm; needed by the kl loss

    // Of tokens [begin, begin + count).
    TargetFeatures rows(std::int64_t begin, std::int64_t count) const {
        return {taps.slice_rows(begin, count), final_state.defined() ? final_state.slice_rows(begin, count) : Tensor{}};
    }
};

// A micro-batch with its features; both stay valid until the source's next call.
struct FeatureBatch {
    const PackedBatch* batch = nullptr;
    TargetFeatures features;
};

class FeatureSource {
public:
    virtual ~FeatureSource() = default;
    virtual std::int64_t batches_in_epoch(std::int64_t epoch) const = 0;
    virtual void seek(std::int64_t epoch, std::int64_t cursor) = 0;
    virtual FeatureBatch next(const Context& context) = 0;
    // All ops that read the last batch's features have been launched: a source that copies the next ones beside running ops need not wait for
    // what is launched from here on. Optional.
    virtual void release(const Context&) {}
};

}  // namespace dflash
