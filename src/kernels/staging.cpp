// SPDX-License-Identifier: MIT
#include "kernels/staging.h"

#include <algorithm>
#include <cstring>

#include "tensor/cuda_runtime.h"

namespace dflash {

StagingRing::StagingRing(const Stream& stream, std::size_t bytes)
    : stream_(stream),
      segment_bytes_(bytes / kSegments),
      memory_(Device{}, DType::kU8, {static_cast<std::int64_t>(bytes)}, HostMemory::kPinned) {
    for (void*& event : done_) {
        event = cuda::create_event(stream_.device);
        cuda::record(stream_, event);
    }
}

StagingRing::~StagingRing() {
    for (void* event : done_) cuda::destroy_event(event);
}

void StagingRing::next_segment() {
    cuda::record(stream_, done_[segment_]);
    segment_ = (segment_ + 1) % kSegments;
    cuda::wait(done_[segment_]);
    used_ = 0;
}

void StagingRing::copy(void* to, const void* from, std::size_t bytes) {
    auto* target = static_cast<char*>(to);
    const auto* source = static_cast<const char*>(from);
    while (bytes > 0) {
        if (used_ == segment_bytes_) next_segment();
        const std::size_t part = std::min(bytes, segment_bytes_ - used_);
        char* staged = static_cast<char*>(memory_.tensor().data) + segment_ * segment_bytes_ + used_;
        std::memcpy(staged, source, part);
        cuda::copy(stream_, target, staged, part);
        used_ += part;
        target += part;
        source += part;
        bytes -= part;
    }
}

}  // namespace dflash
