// SPDX-License-Identifier: MIT
#include "tensor/arena.h"

namespace dflash {

static_assert(kBufferAlignment % kPlanAlignment == 0);

Arena::Arena(Device device, const Plan& plan, HostMemory host_memory)
    : memory_(device, DType::kU8, {static_cast<std::int64_t>(plan.arena_bytes)}, host_memory) {
    for (const PlacedBuffer& buffer : plan.buffers) {
        void* data = memory_.tensor().ptr<char>() + buffer.offset;
        views_[buffer.spec.name] = Tensor{data, buffer.spec.dtype, buffer.spec.shape, device};
    }
}

Tensor Arena::tensor(const std::string& name) const {
    const auto found = views_.find(name);
    DFLASH_CHECK(found != views_.end(), "buffer '{}' is not in the memory plan", name);
    return found->second;
}

}  // namespace dflash
