// SPDX-License-Identifier: MIT
// What the GPU benches share: event times under load, and values to compute with.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/context.h"
#include "tensor/cuda_runtime.h"

namespace dflash {

// Times in ms of `runs` runs, sorted, after `load_ms` of the work's own load: a card under load is power-capped.
inline std::vector<double> timed_ms(const Context& context, const std::function<void()>& work, int runs, double load_ms) {
    const Device device = context.device();
    void* begin = cuda::create_event(device);
    void* end = cuda::create_event(device);
    const auto once = [&] {
        cuda::record(context.stream(), begin);
        work();
        cuda::record(context.stream(), end);
        cuda::wait(end);
        return cuda::milliseconds_between(begin, end);
    };
    for (double load = 0; load < load_ms;) load += once();
    std::vector<double> ms;
    for (int run = 0; run < runs; ++run) ms.push_back(once());
    std::sort(ms.begin(), ms.end());
    cuda::destroy_event(begin);
    cuda::destroy_event(end);
    return ms;
}

// A bf16 tensor of even draws in [-scale, scale).
inline void fill_bf16(const Context& context, const Tensor& tensor, float scale) {
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(tensor.elements()));
    std::uint32_t state = 1;
    for (std::uint16_t& b : bits) {
        state = state * 1664525U + 1013904223U;
        const float value = scale * (static_cast<float>(state >> 8) / 8388608.0F - 1.0F);
        b = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
    }
    context.upload(bits.data(), tensor);
}

}  // namespace dflash
