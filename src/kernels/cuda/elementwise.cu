// SPDX-License-Identifier: MIT
#include <cuda_fp16.h>

#include "kernels/backends.h"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/launch.cuh"

namespace dflash::cuda {
namespace {

using device::load;
using device::store;

constexpr int kThreads = 256;

// body(vector start) for every group of kWidth elements, then single ones for the rest.
template <int kWidth, typename Body, typename Single>
__device__ __forceinline__ void for_each_vector(std::int64_t n, const Body& body, const Single& single) {
    const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const std::int64_t vectors = n / kWidth;
    for (std::int64_t i = first; i < vectors; i += stride) body(i * kWidth);
    for (std::int64_t i = vectors * kWidth + first; i < n; i += stride) single(i);
}

template <typename T, int kWidth>
__global__ void add_kernel(const T* x, T* y, std::int64_t n) {
    const auto add_at = [&]<int kN>(std::int64_t i, std::integral_constant<int, kN>) {
        float a[kN], b[kN];
        load<kN>(x + i, a);
        load<kN>(y + i, b);
#pragma unroll
        for (int j = 0; j < kN; ++j) b[j] += a[j];
        store<kN>(y + i, b);
    };
    for_each_vector<kWidth>(
        n, [&](std::int64_t i) { add_at(i, std::integral_constant<int, kWidth>{}); },
        [&](std::int64_t i) { add_at(i, std::integral_constant<int, 1>{}); });
}

template <typename T, int kWidth>
__global__ void axpby_kernel(float alpha, const T* x, float beta, T* y, std::int64_t n) {
    const auto at = [&]<int kN>(std::int64_t i, std::integral_constant<int, kN>) {
        float a[kN], b[kN];
        load<kN>(x + i, a);
        if (beta != 0) load<kN>(y + i, b);
#pragma unroll
        for (int j = 0; j < kN; ++j) b[j] = alpha * a[j] + (beta != 0 ? beta * b[j] : 0.0F);
        store<kN>(y + i, b);
    };
    for_each_vector<kWidth>(
        n, [&](std::int64_t i) { at(i, std::integral_constant<int, kWidth>{}); },
        [&](std::int64_t i) { at(i, std::integral_constant<int, 1>{}); });
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ void from_float(float x, float& y) { y = x; }
__device__ __forceinline__ void from_float(float x, __nv_bfloat16& y) { y = __float2bfloat16_rn(x); }
__device__ __forceinline__ void from_float(float x, __half& y) { y = __float2half_rn(x); }

template <typename From, typename To>
__global__ void cast_kernel(const From* x, To* y, std::int64_t n) {
    const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride)
        from_float(to_float(x[i]), y[i]);
}

// The index of the largest of a row, the first of equals; -1 if any is NaN.
struct Best {
    float value;
    std::int32_t index;
};
__device__ __forceinline__ Best better(Best a, Best b) {
    if (isnan(a.value)) return a;
    if (isnan(b.value)) return b;
    if (a.value != b.value) return a.value > b.value ? a : b;
    return a.index < b.index ? a : b;
}

template <typename T>
__global__ void argmax_kernel(const T* x, std::int64_t columns, std::int32_t* y) {
    constexpr int kWarps = kThreads / device::kWarp;
    __shared__ Best best_of_warp[kWarps];
    const T* row = x + blockIdx.x * columns;
    Best best{-INFINITY, INT32_MAX};
    for (std::int64_t i = threadIdx.x; i < columns; i += kThreads) best = better(best, {to_float(row[i]), static_cast<std::int32_t>(i)});
    for (int step = device::kWarp / 2; step > 0; step /= 2) {
        const Best other{__shfl_xor_sync(0xffffffffu, best.value, step), __shfl_xor_sync(0xffffffffu, best.index, step)};
        best = better(best, other);
    }
    if (threadIdx.x % device::kWarp == 0) best_of_warp[threadIdx.x / device::kWarp] = best;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int warp = 1; warp < kWarps; ++warp) best = better(best, best_of_warp[warp]);
    // A row of minus infinities has its first element as the largest.
    y[blockIdx.x] = isnan(best.value) ? -1 : best.index == INT32_MAX ? 0 : best.index;
}

bool aligned(const Tensor& x, const Tensor& y) { return in_vectors(kVector, {&x, &y}); }

// launch(T*) with x's element type T: f32 or bf16.
template <typename Launch>
void with_float_type(const char* op, const Tensor& x, const Launch& launch) {
    if (x.dtype == DType::kF32) return launch(static_cast<float*>(nullptr));
    check_bf16(op, {&x});
    launch(static_cast<__nv_bfloat16*>(nullptr));
}

}  // namespace

void fill_zero(const Context& context, const Tensor& y) { DFLASH_CUDA(cudaMemsetAsync(y.data, 0, y.bytes(), stream_of(context))); }

void cast(const Context& context, const Tensor& x, const Tensor& y) {
    const std::int64_t n = x.elements();
    const auto to = [&]<typename From>(const From* from) {
        const auto launch = [&]<typename To>(To* result) {
            cast_kernel<<<blocks_for(n, 4 * kThreads), kThreads, 0, stream_of(context)>>>(from, result, n);
        };
        if (y.dtype == DType::kF32) return launch(static_cast<float*>(y.data));
        if (y.dtype == DType::kBF16) return launch(static_cast<__nv_bfloat16*>(y.data));
        launch(static_cast<__half*>(y.data));
    };
    if (x.dtype == DType::kF32) {
        to(static_cast<const float*>(x.data));
    } else if (x.dtype == DType::kBF16) {
        to(static_cast<const __nv_bfloat16*>(x.data));
    } else {
        to(static_cast<const __half*>(x.data));
    }
    DFLASH_LAUNCH_CHECK("cast");
}

void add(const Context& context, const Tensor& x, const Tensor& y) {
    const std::int64_t n = x.elements();
    with_float_type("add", x, [&]<typename T>(T*) {
        with_width(aligned(x, y), [&](auto width) {
            constexpr int kWidth = decltype(width)::value;
            add_kernel<T, kWidth><<<blocks_for(n, kWidth * kThreads), kThreads, 0, stream_of(context)>>>(static_cast<const T*>(x.data),
                                                                                                         static_cast<T*>(y.data), n);
        });
    });
    DFLASH_LAUNCH_CHECK("add");
}

void axpby(const Context& context, float alpha, const Tensor& x, float beta, const Tensor& y) {
    const std::int64_t n = x.elements();
    with_float_type("axpby", x, [&]<typename T>(T*) {
        with_width(aligned(x, y), [&](auto width) {
            constexpr int kWidth = decltype(width)::value;
            axpby_kernel<T, kWidth><<<blocks_for(n, kWidth * kThreads), kThreads, 0, stream_of(context)>>>(
                alpha, static_cast<const T*>(x.data), beta, static_cast<T*>(y.data), n);
        });
    });
    DFLASH_LAUNCH_CHECK("axpby");
}

void copy_columns(const Context& context, const Tensor& x, const Tensor& y, std::int64_t column_begin) {
    const std::size_t element = dtype_bytes(x.dtype);
    const auto bytes = [&](std::int64_t columns) { return static_cast<std::size_t>(columns) * element; };
    DFLASH_CUDA(cudaMemcpy2DAsync(static_cast<char*>(y.data) + bytes(column_begin), bytes(y.row_elements()), x.data,
                                  bytes(x.row_elements()), bytes(x.row_elements()), static_cast<std::size_t>(x.rows()),
                                  cudaMemcpyDeviceToDevice, stream_of(context)));
}

void argmax_rows(const Context& context, const Tensor& x, const Tensor& y) {
    with_float_type("argmax_rows", x, [&]<typename T>(T*) {
        argmax_kernel<<<static_cast<unsigned>(x.rows()), kThreads, 0, stream_of(context)>>>(static_cast<const T*>(x.data), x.row_elements(),
                                                                                            y.i32());
    });
    DFLASH_LAUNCH_CHECK("argmax_rows");
}

}  // namespace dflash::cuda
