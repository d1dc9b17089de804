// SPDX-License-Identifier: MIT
// Owned host memory outside the plan: for tests, loading and command-line tools. The training loop uses Arena instead.
#pragma once

#include <cstddef>
#include <memory>

#include "tensor/tensor.h"

namespace dflash {

constexpr std::size_t kBufferAlignment = 64;  // a cache line, and the widest CPU vector

class HostBuffer {
public:
    HostBuffer() = default;
    // Zero-filled.
    HostBuffer(DType dtype, const Shape& shape);
    const Tensor& tensor() const { return tensor_; }
    operator const Tensor&() const { return tensor_; }  // NOLINT(google-explicit-constructor): a buffer is used as its view

private:
    struct Free {
        void operator()(void* p) const;
    };
    std::unique_ptr<void, Free> memory_;
    Tensor tensor_;
};

}  // namespace dflash
