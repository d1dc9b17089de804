// SPDX-License-Identifier: MIT
#include "tensor/buffer.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace dflash {

HostBuffer::HostBuffer(DType dtype, const Shape& shape) {
    tensor_ = Tensor{nullptr, dtype, shape, Device{}};
    const std::size_t padded = (tensor_.bytes() + kBufferAlignment) / kBufferAlignment * kBufferAlignment;
    memory_.reset(std::aligned_alloc(kBufferAlignment, padded));
    if (!memory_) throw std::bad_alloc();
    std::memset(memory_.get(), 0, padded);
    tensor_.data = memory_.get();
}

void HostBuffer::Free::operator()(void* p) const { std::free(p); }

}  // namespace dflash
