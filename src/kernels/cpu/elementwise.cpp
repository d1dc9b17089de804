// SPDX-License-Identifier: MIT
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "kernels/backends.h"
#include "kernels/cpu/parallel.h"

namespace dflash::cpu {

namespace {

float load_element(const Tensor& x, std::int64_t i) {
    switch (x.dtype) {
        case DType::kBF16: return bf16_to_float(static_cast<const std::uint16_t*>(x.data)[i]);
        case DType::kF16: return f16_to_float(static_cast<const std::uint16_t*>(x.data)[i]);
        default: return static_cast<const float*>(x.data)[i];
    }
}

void store_element(const Tensor& y, std::int64_t i, float value) {
    switch (y.dtype) {
        case DType::kBF16: static_cast<std::uint16_t*>(y.data)[i] = float_to_bf16(value); break;
        case DType::kF16: static_cast<std::uint16_t*>(y.data)[i] = float_to_f16(value); break;
        default: static_cast<float*>(y.data)[i] = value;
    }
}

// The first largest; -1 where a NaN stands among them.
std::int32_t argmax(const float* x, std::int64_t n) {
    std::int64_t best = 0;
    for (std::int64_t i = 0; i < n; ++i) {
        if (std::isnan(x[i])) return -1;
        if (x[i] > x[best]) best = i;
    }
    return n > 0 ? static_cast<std::int32_t>(best) : -1;
}

}  // namespace

void fill_zero(const Context&, const Tensor& y) {
    const auto bytes = static_cast<std::int64_t>(y.bytes());
    parallel_ranges(bytes, 1, [&](std::int64_t begin, std::int64_t end) {
        std::memset(static_cast<char*>(y.data) + begin, 0, static_cast<std::size_t>(end - begin));
    });
}

void cast(const Context&, const Tensor& x, const Tensor& y) {
    parallel_ranges(x.elements(), 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) store_element(y, i, load_element(x, i));
    });
}

void add(const Context&, const Tensor& x, const Tensor& y) {
    const float* from = x.f32();
    float* to = y.f32();
    parallel_ranges(x.elements(), 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) to[i] += from[i];
    });
}

void copy_columns(const Context&, const Tensor& x, const Tensor& y, std::int64_t column_begin) {
    const std::int64_t columns = x.row_elements();
    parallel_ranges(x.rows(), columns, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
            std::memcpy(y.f32() + r * y.row_elements() + column_begin, x.f32() + r * columns,
                        static_cast<std::size_t>(columns) * sizeof(float));
        }
    });
}

void argmax_rows(const Context&, const Tensor& x, const Tensor& y) {
    const std::int64_t columns = x.row_elements();
    parallel_ranges(x.rows(), columns, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) y.i32()[r] = argmax(x.f32() + r * columns, columns);
    });
}

}  // namespace dflash::cpu
