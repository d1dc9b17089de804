// SPDX-License-Identifier: MIT
// Owned memory outside the plan: for tests, loading and command-line tools. The training loop uses Arena instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tensor/tensor.h"

namespace dflash {

constexpr std::size_t kBufferAlignment = 256;  // what cudaMalloc gives; several cache lines, and the widest CPU vector

// Page-locked host memory is copied to and from a GPU at full speed, beside running kernels; it exists where a GPU does.
enum class HostMemory : std::uint8_t { kPageable, kPinned };

// Memory of a device, zero-filled. Throws Error(kFailed) naming the size when it is not to be had.
class DeviceBuffer {
public:
    DeviceBuffer() = default;
    DeviceBuffer(Device device, DType dtype, const Shape& shape, HostMemory host_memory = HostMemory::kPageable);
    const Tensor& tensor() const { return tensor_; }
    operator const Tensor&() const { return tensor_; }  // NOLINT(google-explicit-constructor): a buffer is used as its view

private:
    struct Free {
        Device device;
        HostMemory host_memory;
        void operator()(void* memory) const;
    };
    std::unique_ptr<void, Free> memory_;
    Tensor tensor_;
};

class HostBuffer : public DeviceBuffer {
public:
    HostBuffer() = default;
    HostBuffer(DType dtype, const Shape& shape) : DeviceBuffer(Device{}, dtype, shape) {}
};

}  // namespace dflash
