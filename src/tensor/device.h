// SPDX-License-Identifier: MIT
// Where memory lives and where work is ordered. A Stream on the CPU is empty: work is done when the call returns.
#pragma once

#include <cstdint>

namespace dflash {

enum class DeviceType : std::uint8_t { kCpu, kCuda };

struct Device {
    DeviceType type = DeviceType::kCpu;
    int index = 0;
    bool operator==(const Device&) const = default;
};

struct Stream {
    Device device;
    void* handle = nullptr;  // cudaStream_t on CUDA, null on the CPU
};

}  // namespace dflash
