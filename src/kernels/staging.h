// SPDX-License-Identifier: MIT
// A ring of pinned host memory through which small inputs travel to a GPU without anyone waiting: the host writes into the ring and goes on,
// the copy runs in stream order. Its segments are used in turn; one is written again only when the copies from it are done.
#pragma once

#include <array>
#include <cstddef>

#include "tensor/buffer.h"
#include "tensor/device.h"

namespace dflash {

class StagingRing {
public:
    StagingRing(const Stream& stream, std::size_t bytes);
    ~StagingRing();
    StagingRing(const StagingRing&) = delete;
    StagingRing& operator=(const StagingRing&) = delete;

    // `from` may be used again at once.
    void copy(void* to, const void* from, std::size_t bytes);

private:
    static constexpr std::size_t kSegments = 4;
    void next_segment();

    Stream stream_;
    std::size_t segment_bytes_;
    DeviceBuffer memory_;                  // pinned
    std::array<void*, kSegments> done_{};  // events: the copies out of a segment have been made
    std::size_t segment_ = 0;
    std::size_t used_ = 0;  // bytes of the current segment
};

}  // namespace dflash
