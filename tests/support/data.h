// SPDX-License-Identifier: MIT
// Random and poisoned buffers for tests.
#pragma once

#include <cstring>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "tensor/buffer.h"

namespace dflash::testing {

inline HostBuffer random_f32(const Shape& shape, std::uint64_t seed, double scale = 1.0, double mean = 0.0) {
    HostBuffer buffer(DType::kF32, shape);
    Philox rng(seed, 17);
    float* p = buffer.tensor().f32();
    for (std::int64_t i = 0; i < shape.elements(); ++i) p[i] = static_cast<float>(mean + scale * rng.next_normal());
    return buffer;
}

// An output no op may leave as it is: NaN throughout.
inline HostBuffer poisoned_f32(const Shape& shape) {
    HostBuffer buffer(DType::kF32, shape);
    float* p = buffer.tensor().f32();
    for (std::int64_t i = 0; i < shape.elements(); ++i) p[i] = std::numeric_limits<float>::quiet_NaN();
    return buffer;
}

inline HostBuffer i32_tensor(const std::vector<std::int32_t>& values) {
    HostBuffer buffer(DType::kI32, {static_cast<std::int64_t>(values.size())});
    if (!values.empty()) std::memcpy(buffer.tensor().data, values.data(), values.size() * sizeof(std::int32_t));
    return buffer;
}

inline HostBuffer f64_tensor(const std::vector<double>& values) {
    HostBuffer buffer(DType::kF64, {static_cast<std::int64_t>(values.size())});
    if (!values.empty()) std::memcpy(buffer.tensor().data, values.data(), values.size() * sizeof(double));
    return buffer;
}

inline std::vector<double> to_double(const Tensor& tensor) {
    const float* p = tensor.f32();
    return {p, p + tensor.elements()};
}

}  // namespace dflash::testing
