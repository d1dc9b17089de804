// SPDX-License-Identifier: MIT
#include "kernels/context.h"

#include <omp.h>

#include <cstring>

#include "kernels/backends.h"
#include "kernels/staging.h"
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
    if (stream_.handle != nullptr) cuda::destroy_stream(stream_.handle);
}

void* Context::workspace(std::size_t bytes) const {
    if (workspace_.defined()) {
        DFLASH_CHECK(bytes <= workspace_.bytes(), "an op needs {} bytes of workspace, {} are planned", bytes, workspace_.bytes());
        return workspace_.data;
    }
    if (!private_workspace_.tensor().defined() || bytes > private_workspace_.tensor().bytes()) {
        synchronize();  // an op may still be using the smaller one
        private_workspace_ = DeviceBuffer(device(), DType::kU8, {static_cast<std::int64_t>(bytes)});
    }
    return private_workspace_.tensor().data;
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
