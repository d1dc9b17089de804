// SPDX-License-Identifier: MIT
// Vector helpers of the CPU kernels, compiled once per instruction set (Highway's per-target include, hence the unusual guard).
//   for_each_vector(n, f)  calls f(at) for each run of lanes of [0, n); at.load(p) and at.store(v, p) touch p[run] and nothing beside
//                          it, so the last, short run needs no code of its own.
//   range_max              of a row.
//   exp, sigmoid, silu     with NaN kept and no overflow for large arguments.
#if defined(DFLASH_KERNELS_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DFLASH_KERNELS_CPU_VECTOR_INL_H_
#undef DFLASH_KERNELS_CPU_VECTOR_INL_H_
#else
#define DFLASH_KERNELS_CPU_VECTOR_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dflash::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes: scratch rows padded to 16 floats suit every instruction set.
using F32 = hn::CappedTag<float, 16>;
using F32Vector = hn::Vec<F32>;
HWY_INLINE std::int64_t f32_lanes() { return static_cast<std::int64_t>(hn::Lanes(F32())); }

struct WholeRun {
    std::int64_t begin;
    HWY_INLINE F32Vector load(const float* p) const { return hn::LoadU(F32(), p + begin); }
    HWY_INLINE void store(F32Vector v, float* p) const { hn::StoreU(v, F32(), p + begin); }
    // Lanes beyond the run become zero, for sums.
    HWY_INLINE F32Vector zero_beyond(F32Vector v) const { return v; }
    // Lanes beyond the run become `other`, for extremes.
    HWY_INLINE F32Vector other_beyond(F32Vector v, F32Vector /*other*/) const { return v; }
};

struct ShortRun {
    std::int64_t begin;
    std::int64_t count;
    HWY_INLINE F32Vector load(const float* p) const {
        HWY_ALIGN float lanes[16] = {};
        std::memcpy(lanes, p + begin, static_cast<std::size_t>(count) * sizeof(float));
        return hn::Load(F32(), lanes);
    }
    HWY_INLINE void store(F32Vector v, float* p) const {
        HWY_ALIGN float lanes[16];
        hn::Store(v, F32(), lanes);
        std::memcpy(p + begin, lanes, static_cast<std::size_t>(count) * sizeof(float));
    }
    HWY_INLINE F32Vector zero_beyond(F32Vector v) const {
        return hn::IfThenElseZero(hn::FirstN(F32(), static_cast<std::size_t>(count)), v);
    }
    HWY_INLINE F32Vector other_beyond(F32Vector v, F32Vector other) const {
        return hn::IfThenElse(hn::FirstN(F32(), static_cast<std::size_t>(count)), v, other);
    }
};

template <typename Body>
HWY_INLINE void for_each_vector(std::int64_t n, const Body& body) {
    const std::int64_t lanes = f32_lanes();
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes) body(WholeRun{i});
    if (i < n) body(ShortRun{i, n - i});
}

HWY_INLINE float sum_of_lanes(F32Vector v) { return hn::GetLane(hn::SumOfLanes(F32(), v)); }
HWY_INLINE float max_of_lanes(F32Vector v) { return hn::GetLane(hn::MaxOfLanes(F32(), v)); }

// The largest of n values, NaN aside; -inf where there are none.
HWY_INLINE float range_max(const float* x, std::int64_t n) {
    const F32Vector lowest = hn::Set(F32(), -std::numeric_limits<float>::infinity());
    F32Vector max = lowest;
    for_each_vector(n, [&](auto at) { max = hn::Max(max, at.other_beyond(at.load(x), lowest)); });
    return max_of_lanes(max);
}

// e^x for x <= 88; zero below -87.3 (where f32 has no normal numbers left), NaN stays NaN. Cody-Waite reduction by ln 2 and the
// minimax polynomial of Cephes' expf; error under 2 units in the last place.
template <class V>
HWY_INLINE V exp(V x) {
    const hn::DFromV<V> d;
    const hn::Rebind<std::int32_t, decltype(d)> di;
    const V n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504088896341F)));
    V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375F), x);
    r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4F), r);
    V p = hn::Set(d, 1.9875691500e-4F);
    p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3F));
    p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3F));
    p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2F));
    p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1F));
    p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1F));
    p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0F));
    const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127))));
    return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.3F)), hn::Mul(p, power));
}

// 1 / (1 + e^-x)
template <class V>
HWY_INLINE V sigmoid(V x) {
    const hn::DFromV<V> d;
    const V clamped = hn::IfThenElse(hn::Lt(x, hn::Set(d, -88.0F)), hn::Set(d, -88.0F), x);
    const V one = hn::Set(d, 1.0F);
    return hn::Div(one, hn::Add(one, exp(hn::Neg(clamped))));
}

// x / (1 + e^-x)
template <class V>
HWY_INLINE V silu(V x) {
    return hn::Mul(x, sigmoid(x));
}

}  // namespace dflash::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include
