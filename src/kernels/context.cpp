// SPDX-License-Identifier: MIT
#include "kernels/context.h"

#include <omp.h>

#include "kernels/backends.h"
#include "tensor/buffer.h"

namespace dflash {

namespace {

// Scratch starts on a cache line even where the private buffer does not.
constexpr std::size_t kScratchAlignment = kBufferAlignment;

}  // namespace

Context::Context(Device device) : stream_{device, nullptr} {
    if (device.type == DeviceType::kCuda) stream_.handle = cuda::create_stream(device);
    matmul_ = on_device(device, cpu::make_matmul_library, cuda::make_matmul_library)(device);
}

Context::~Context() {
    matmul_.reset();
    if (stream_.handle != nullptr) cuda::destroy_stream(stream_.handle);
}

void* Context::workspace(std::size_t bytes) const {
    if (workspace_.defined()) {
        DFLASH_CHECK(bytes <= workspace_.bytes(), "an op needs {} bytes of workspace, {} are planned", bytes, workspace_.bytes());
        return workspace_.data;
    }
    DFLASH_CHECK(device().type == DeviceType::kCpu, "an op needs {} bytes of workspace, and none is bound", bytes);
    if (bytes > private_bytes_) {
        private_workspace_.reset(new char[bytes + kScratchAlignment]);
        private_bytes_ = bytes;
    }
    const auto address = reinterpret_cast<std::uintptr_t>(private_workspace_.get());
    return reinterpret_cast<void*>((address + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment);
}

int cpu_threads() { return omp_get_max_threads(); }

}  // namespace dflash
