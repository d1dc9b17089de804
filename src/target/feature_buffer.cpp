// SPDX-License-Identifier: MIT
#include "target/feature_buffer.h"

namespace dflash {

FeatureBuffer::FeatureBuffer(const TargetFeatures& memory) : memory_(memory), copies_{memory.taps.device, nullptr} {
    if (device().type != DeviceType::kCuda) return;
    released_.reset(cuda::create_event(device()));
    copies_.handle = cuda::create_stream(device());
}

FeatureBuffer::~FeatureBuffer() {
    if (copies_.handle != nullptr) cuda::destroy_stream(copies_.handle);
}

void FeatureBuffer::release(const Context& context) {
    cuda::record(context.stream(), released_.get());
    is_released_ = true;
}

void FeatureBuffer::send(const Context& context, const TargetFeatures& host, void* sent) {
    if (!is_released_) release(context);
    is_released_ = false;
    const TargetFeatures there = memory_.rows(0, host.taps.rows());
    cuda::wait_on_stream(copies_, released_.get());
    cuda::copy(copies_, there.taps.data, host.taps.data, host.taps.bytes());
    if (has_final_state()) cuda::copy(copies_, there.final_state.data, host.final_state.data, host.final_state.bytes());
    cuda::record(copies_, sent);
    cuda::wait_on_stream(context.stream(), sent);
}

}  // namespace dflash
