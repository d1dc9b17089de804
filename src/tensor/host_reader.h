// SPDX-License-Identifier: MIT
// Tensors of any device as the host sees them, a piece at a time: on the CPU the tensor itself, on CUDA through page-locked memory that is
// taken once, so that saving in the middle of a run allocates nothing.
#pragma once

#include <cstddef>
#include <functional>

#include "tensor/buffer.h"
#include "tensor/tensor.h"

namespace dflash {

constexpr std::size_t kHostReaderBytes = std::size_t{8} << 20;  // page-locked, on CUDA

class HostReader {
public:
    // Reads come after all work on the stream so far.
    explicit HostReader(const Stream& stream);

    // A flat part of a tensor in host memory, valid during the call; parts come in order and cover the tensor.
    using Visit = std::function<void(const Tensor& part)>;
    void read(const Tensor& tensor, const Visit& visit);
    // The f32 values of a master (kernels/adamw.h): of `weight` alone where it is f32, else joined with its remainder.
    void read_master(const Tensor& weight, const Tensor& remainder, const Visit& visit);

private:
    Tensor fetch(const Tensor& tensor, std::int64_t begin, std::int64_t count, std::size_t at);

    Stream stream_;
    DeviceBuffer memory_;
};

}  // namespace dflash
