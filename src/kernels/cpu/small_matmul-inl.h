// SPDX-License-Identifier: MIT
// Small dense products for the CPU attention and delta-rule kernels, compiled once per instruction set (Highway's
// per-target include: no include guard in the usual sense).
//   add_matmul   C (m, n) += A (m, k) B (k, n), row-major with row strides
// Every element of C is one chain of fused multiply-adds in the order of k, whatever m is and wherever its row stands: results do not
// depend on the rows beside them.
#if defined(DFLASH_KERNELS_CPU_SMALL_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DFLASH_KERNELS_CPU_SMALL_MATMUL_INL_H_
#undef DFLASH_KERNELS_CPU_SMALL_MATMUL_INL_H_
#else
#define DFLASH_KERNELS_CPU_SMALL_MATMUL_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

// Loops over registers must vanish, or the sums would live in memory.
#ifdef __clang__
#define DFLASH_UNROLL _Pragma("clang loop unroll(full)")
#else
#define DFLASH_UNROLL _Pragma("GCC unroll 16")
#endif

HWY_BEFORE_NAMESPACE();
namespace dflash::cpu::HWY_NAMESPACE {

using Wide = F32;
// One lane, for what is left over.
using Single = hn::CappedTag<float, 1>;

struct MatmulOperands {
    std::int64_t k;
    const float* a;
    std::int64_t a_stride;
    const float* b;
    std::int64_t b_stride;
    float* c;
    std::int64_t c_stride;
    std::int64_t a_step = 1;  // between A's elements along k; with a_stride 1 this reads A from its transpose
};

template <int kRows, int kVectors, class D>
HWY_INLINE void multiply_tile(D d, const MatmulOperands& o, std::int64_t row, std::int64_t column) {
    using V = hn::Vec<D>;
    const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
    V sum[kRows][kVectors];
    const float* a = o.a + row * o.a_stride;
    const float* b = o.b + column;
    float* c = o.c + row * o.c_stride + column;
    DFLASH_UNROLL
    for (int r = 0; r < kRows; ++r) {
        DFLASH_UNROLL
        for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::LoadU(d, c + r * o.c_stride + v * lanes);
    }
    for (std::int64_t i = 0; i < o.k; ++i, a += o.a_step, b += o.b_stride) {
        V b_row[kVectors];
        DFLASH_UNROLL
        for (int v = 0; v < kVectors; ++v) b_row[v] = hn::LoadU(d, b + v * lanes);
        DFLASH_UNROLL
        for (int r = 0; r < kRows; ++r) {
            const V a_element = hn::Set(d, a[r * o.a_stride]);
            DFLASH_UNROLL
            for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(a_element, b_row[v], sum[r][v]);
        }
    }
    DFLASH_UNROLL
    for (int r = 0; r < kRows; ++r) {
        DFLASH_UNROLL
        for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, c + r * o.c_stride + v * lanes);
    }
}

template <int kVectors, class D>
HWY_INLINE void multiply_columns(D d, const MatmulOperands& o, std::int64_t m, std::int64_t column) {
    std::int64_t row = 0;
    // Narrow tiles are made tall, where the registers allow it: eight sums at least must be in flight.
    if constexpr (kVectors == 2 && hn::MaxLanes(D()) == 16) {
        for (; row + 8 <= m; row += 8) multiply_tile<8, kVectors>(d, o, row, column);
    }
    for (; row + 4 <= m; row += 4) multiply_tile<4, kVectors>(d, o, row, column);
    for (; row < m; ++row) multiply_tile<1, kVectors>(d, o, row, column);
}

HWY_INLINE void add_matmul(std::int64_t m, std::int64_t n, const MatmulOperands& o) {
    const Wide wide;
    const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(wide));
    std::int64_t column = 0;
    for (; column + 4 * lanes <= n; column += 4 * lanes) multiply_columns<4>(wide, o, m, column);
    for (; column + 2 * lanes <= n; column += 2 * lanes) multiply_columns<2>(wide, o, m, column);
    for (; column + lanes <= n; column += lanes) multiply_columns<1>(wide, o, m, column);
    for (; column < n; ++column) multiply_columns<1>(Single(), o, m, column);
}

// x[0, n) *= factor
HWY_INLINE void scale_row(float factor, float* x, std::int64_t n) {
    const Wide wide;
    const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(wide));
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(wide, x + i), hn::Set(wide, factor)), wide, x + i);
    for (; i < n; ++i) x[i] *= factor;
}

}  // namespace dflash::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include
