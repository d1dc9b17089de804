// SPDX-License-Identifier: MIT
#include "tensor/device_memory.h"

#include "base/host_memory.h"
#include "tensor/cuda_runtime.h"

namespace dflash {

std::size_t available_memory_bytes(Device device) {
    return device.type == DeviceType::kCuda ? cuda::free_memory_bytes(device) : host_memory_available_bytes();
}

std::size_t used_memory_bytes(Device device) {
    return device.type == DeviceType::kCuda ? cuda::device_properties(device).memory_bytes - cuda::free_memory_bytes(device) : 0;
}

}  // namespace dflash
