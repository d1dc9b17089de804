// SPDX-License-Identifier: MIT
#include "tensor/buffer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/byte_size.h"
#include "base/error.h"
#include "tensor/cuda_runtime.h"

namespace dflash {
namespace {

void* allocate_host(std::size_t bytes, HostMemory host_memory) {
    void* memory = host_memory == HostMemory::kPinned ? cuda::allocate_pinned(bytes) : std::aligned_alloc(kBufferAlignment, bytes);
    if (memory == nullptr) {
        throw_failed("cannot allocate {} of host memory: lower --token-budget or --max-anchors, or end what else runs here",
                     format_bytes(bytes));
    }
    std::memset(memory, 0, bytes);
    return memory;
}

void* allocate_cuda(Device device, std::size_t bytes) {
    void* memory = cuda::allocate(device, bytes);
    const Stream stream{device, nullptr};
    cuda::fill(stream, memory, 0, bytes);
    cuda::synchronize(stream);
    return memory;
}

}  // namespace

DeviceBuffer::DeviceBuffer(Device device, DType dtype, const Shape& shape, HostMemory host_memory)
    : memory_(nullptr, Free{device, host_memory}), tensor_{nullptr, dtype, shape, device} {
    const std::size_t padded = (std::max<std::size_t>(tensor_.bytes(), 1) + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
    memory_.reset(device.type == DeviceType::kCuda ? allocate_cuda(device, padded) : allocate_host(padded, host_memory));
    tensor_.data = memory_.get();
}

void DeviceBuffer::Free::operator()(void* memory) const {
    if (device.type == DeviceType::kCuda) {
        cuda::deallocate(device, memory);
    } else if (host_memory == HostMemory::kPinned) {
        cuda::deallocate_pinned(memory);
    } else {
        std::free(memory);
    }
}

}  // namespace dflash
