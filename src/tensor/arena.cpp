// SPDX-License-Identifier: MIT
#include "tensor/arena.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace dflash {

Arena::Arena(Device device, const Plan& plan) : device_(device), bytes_(plan.arena_bytes) {
    DFLASH_CHECK(device.type == DeviceType::kCpu, "this build allocates arenas on the CPU only");
    const std::size_t bytes = std::max(bytes_, kPlanAlignment);
    memory_ = std::aligned_alloc(kPlanAlignment, (bytes + kPlanAlignment - 1) / kPlanAlignment * kPlanAlignment);
    if (memory_ == nullptr) {
        throw_failed("cannot allocate the planned {} bytes of host memory: lower --token-budget or --max-anchors", bytes_);
    }
    std::memset(memory_, 0, bytes);
    for (const PlacedBuffer& buffer : plan.buffers) {
        views_[buffer.spec.name] = Tensor{static_cast<char*>(memory_) + buffer.offset, buffer.spec.dtype, buffer.spec.shape, device};
    }
}

Arena::~Arena() { std::free(memory_); }

Tensor Arena::tensor(const std::string& name) const {
    const auto found = views_.find(name);
    DFLASH_CHECK(found != views_.end(), "buffer '{}' is not in the memory plan", name);
    return found->second;
}

}  // namespace dflash
