// SPDX-License-Identifier: MIT
#include "kernels/context.h"

#include <omp.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/backends.h"
#include "kernels/staging.h"
#include "tensor/buffer.h"
#include "tensor/cuda_runtime.h"

namespace dflash {

namespace {

bool on_cuda(Device device) { return device.type == DeviceType::kCuda; }

}  // namespace

Context::Context(Device device) : stream_{device, nullptr} {
    if (on_cuda(device)) {
        stream_.handle = cuda::create_stream(device);
        staging_ = std::make_unique<StagingRing>(stream_, kStagingBytes);
    }
    matmul_ = on_device(device, cpu::make_matmul_library, cuda::make_matmul_library)(device);
}

Context::~Context() {
    matmul_.reset();
    staging_.reset();
    free_private_workspace();
    if (stream_.handle != nullptr) cuda::destroy_stream(stream_.handle);
}

void Context::free_private_workspace() const noexcept {
    if (private_workspace_ == nullptr) return;
    if (on_cuda(device())) {
        cuda::deallocate(device(), private_workspace_);
    } else {
        std::free(private_workspace_);
    }
    private_workspace_ = nullptr;
    private_bytes_ = 0;
}

void* Context::workspace(std::size_t bytes) const {
    if (workspace_.defined()) {
        DFLASH_CHECK(bytes <= workspace_.bytes(), "an op needs {} bytes of workspace, {} are planned", bytes, workspace_.bytes());
        return workspace_.data;
    }
    if (bytes <= private_bytes_ && private_workspace_ != nullptr) return private_workspace_;
    if (on_cuda(device())) synchronize();  // an op may still be using the smaller one
    free_private_workspace();
    const std::size_t padded = (bytes + kBufferAlignment) / kBufferAlignment * kBufferAlignment;
    private_workspace_ = on_cuda(device()) ? cuda::allocate(device(), padded) : std::aligned_alloc(kBufferAlignment, padded);
    if (private_workspace_ == nullptr) throw std::bad_alloc();
    private_bytes_ = padded;
    return private_workspace_;
}

void Context::upload(const void* from, const Tensor& to) const {
    if (to.bytes() == 0) return;
    if (on_cuda(device())) {
        staging_->copy(to.data, from, to.bytes());
    } else {
        std::memcpy(to.data, from, to.bytes());
    }
}

void Context::download(const Tensor& from, void* to) const {
    if (from.bytes() == 0) return;
    if (on_cuda(device())) {
        cuda::copy(stream_, to, from.data, from.bytes());
        synchronize();
    } else {
        std::memcpy(to, from.data, from.bytes());
    }
}

void Context::synchronize() const {
    if (on_cuda(device())) cuda::synchronize(stream_);
}

int cpu_threads() { return omp_get_max_threads(); }

}  // namespace dflash
