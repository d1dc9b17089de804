// SPDX-License-Identifier: MIT
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "kernels/backends.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dflash::cpu::HWY_NAMESPACE {

void add_range(const float* x, float* y, std::int64_t n) {
    for_each_vector(n, [&](auto at) { at.store(hn::Add(at.load(y), at.load(x)), y); });
}

void axpby_range(float alpha, const float* x, float beta, float* y, std::int64_t n) {
    const F32Vector a = hn::Set(F32(), alpha);
    const F32Vector b = hn::Set(F32(), beta);
    for_each_vector(n, [&](auto at) {
        const F32Vector scaled = hn::Mul(a, at.load(x));
        at.store(beta == 0.0F ? scaled : hn::MulAdd(b, at.load(y), scaled), y);
    });
}

// The first largest; -1 where a NaN stands among them, or nothing.
std::int32_t argmax_row(const float* x, std::int64_t n) {
    F32Vector nan = hn::Zero(F32());
    for_each_vector(n, [&](auto at) {
        const F32Vector v = at.load(x);
        nan = hn::Add(nan, hn::IfThenElseZero(hn::IsNaN(v), v));
    });
    if (n == 0 || std::isnan(sum_of_lanes(nan))) return -1;
    const float max = range_max(x, n);
    const F32Vector max_vector = hn::Set(F32(), max);
    const std::int64_t lanes = f32_lanes();
    std::int64_t i = 0;
    while (i + lanes <= n && hn::AllFalse(F32(), hn::Eq(hn::LoadU(F32(), x + i), max_vector))) i += lanes;
    while (x[i] != max) ++i;
    return static_cast<std::int32_t>(i);
}

}  // namespace dflash::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::cpu {

HWY_EXPORT(add_range);
HWY_EXPORT(axpby_range);
HWY_EXPORT(argmax_row);

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
    parallel_ranges(x.elements(), 1, [&](std::int64_t begin, std::int64_t end) {
        HWY_DYNAMIC_DISPATCH(add_range)(x.f32() + begin, y.f32() + begin, end - begin);
    });
}

void axpby(const Context&, float alpha, const Tensor& x, float beta, const Tensor& y) {
    parallel_ranges(x.elements(), 1, [&](std::int64_t begin, std::int64_t end) {
        HWY_DYNAMIC_DISPATCH(axpby_range)(alpha, x.f32() + begin, beta, y.f32() + begin, end - begin);
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
        for (std::int64_t r = begin; r < end; ++r) y.i32()[r] = HWY_DYNAMIC_DISPATCH(argmax_row)(x.f32() + r * columns, columns);
    });
}

}  // namespace dflash::cpu
#endif  // HWY_ONCE
