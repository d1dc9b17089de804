// SPDX-License-Identifier: MIT
// What every op call is given: device, stream, planned scratch memory and the library handles behind it (oneDNN
// primitives on the CPU, cuBLASLt on CUDA). One Context per thread of control; ops on one Context run in call order.
#pragma once

#include <memory>

#include "tensor/device.h"
#include "tensor/tensor.h"

namespace dflash {

class MatmulLibrary;  // kernels/matmul_library.h

class Context {
public:
    explicit Context(Device device = {});
    ~Context();
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    Device device() const { return stream_.device; }
    const Stream& stream() const { return stream_; }

    // Scratch for matrix products and other ops, u8 (bytes), normally an arena buffer of linear_workspace_bytes().
    // Without one the Context grows a private buffer (tests, tools).
    void bind_workspace(const Tensor& workspace) { workspace_ = workspace; }
    // At least `bytes` of scratch, valid until the next op. Throws Error(kFailed) when a bound workspace is too small.
    void* workspace(std::size_t bytes) const;

    MatmulLibrary& matmul() const { return *matmul_; }

private:
    Stream stream_;
    Tensor workspace_;
    mutable std::unique_ptr<char[]> private_workspace_;
    mutable std::size_t private_bytes_ = 0;
    std::unique_ptr<MatmulLibrary> matmul_;
};

// Threads that CPU ops use (OpenMP's count at the call). Results are bit-equal for one count.
int cpu_threads();

}  // namespace dflash
