// SPDX-License-Identifier: MIT
#include "tensor/arena.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "tensor/cuda_runtime.h"

namespace dflash {

Arena::Arena(Device device, const Plan& plan) : device_(device), bytes_(plan.arena_bytes) {
    const std::size_t bytes = (std::max(bytes_, kPlanAlignment) + kPlanAlignment - 1) / kPlanAlignment * kPlanAlignment;
    if (device.type == DeviceType::kCuda) {
        memory_ = cuda::allocate(device, bytes);
        const Stream stream{device, nullptr};
        cuda::fill(stream, memory_, 0, bytes);
        cuda::synchronize(stream);
    } else {
        memory_ = std::aligned_alloc(kPlanAlignment, bytes);
        if (memory_ == nullptr) {
            throw_failed("cannot allocate the planned {} bytes of host memory: lower --token-budget or --max-anchors", bytes_);
        }
        std::memset(memory_, 0, bytes);
    }
    for (const PlacedBuffer& buffer : plan.buffers) {
        views_[buffer.spec.name] = Tensor{static_cast<char*>(memory_) + buffer.offset, buffer.spec.dtype, buffer.spec.shape, device};
    }
}

Arena::~Arena() {
    if (device_.type == DeviceType::kCuda) {
        cuda::deallocate(device_, memory_);
    } else {
        std::free(memory_);
    }
}

Tensor Arena::tensor(const std::string& name) const {
    const auto found = views_.find(name);
    DFLASH_CHECK(found != views_.end(), "buffer '{}' is not in the memory plan", name);
    return found->second;
}

}  // namespace dflash
