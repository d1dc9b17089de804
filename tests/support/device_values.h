// SPDX-License-Identifier: MIT
// What a tensor holds, wherever it lives, and putting values there.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/bf16.h"
#include "kernels/context.h"
#include "tensor/cuda_runtime.h"
#include "tensor/tensor.h"

namespace dflash::testing {

// A tensor's elements as floats; f32 or bf16.
inline std::vector<float> values_of(const Context& context, const Tensor& tensor) {
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    if (tensor.dtype == DType::kF32) {
        context.download(tensor, values.data());
        return values;
    }
    std::vector<std::uint16_t> bits(values.size());
    context.download(tensor, bits.data());
    std::transform(bits.begin(), bits.end(), values.begin(), bf16_to_float);
    return values;
}
inline std::vector<double> doubles_of(const Context& context, const Tensor& tensor) {
    const std::vector<float> values = values_of(context, tensor);
    return {values.begin(), values.end()};
}

// The way back.
inline void set_values(const Context& context, const std::vector<float>& values, const Tensor& tensor) {
    if (tensor.dtype == DType::kF32) return context.upload(values.data(), tensor);
    std::vector<std::uint16_t> bits(values.size());
    std::transform(values.begin(), values.end(), bits.begin(), float_to_bf16);
    context.upload(bits.data(), tensor);
}

// In the order of the ops.
inline void fill_bytes(const Context& context, const Tensor& tensor, unsigned char byte) {
    if (context.device().type == DeviceType::kCuda) {
        cuda::fill(context.stream(), tensor.data, byte, tensor.bytes());
    } else {
        std::memset(tensor.data, byte, tensor.bytes());
    }
}

}  // namespace dflash::testing
