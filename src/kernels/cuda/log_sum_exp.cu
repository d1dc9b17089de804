// SPDX-License-Identifier: MIT
// One block a row: the largest value first, then the sum of exponentials in double, in a fixed order. Bound: device memory (the second pass
// mostly hits L2).
#include <cuda_runtime.h>

#include "kernels/backends.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/log_sum_exp.h"

namespace dflash::cuda {
namespace {

constexpr int kThreads = 512;
constexpr unsigned kAllLanes = 0xffffffffU;

struct Largest {
    __device__ double operator()(double a, double b) const { return a >= b ? a : b; }
};
struct Sum {
    __device__ double operator()(double a, double b) const { return a + b; }
};

// The same value in every thread of the block.
template <typename Combine>
__device__ double reduce_block(double value, Combine combine, double* scratch) {
    for (int step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(kAllLanes, value, step));
    __syncthreads();  // the scratch may still be read
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    value = scratch[0];
    for (int warp = 1; warp < kThreads / 32; ++warp) value = combine(value, scratch[warp]);
    return value;
}

__global__ void __launch_bounds__(kThreads) log_sum_exp_kernel(const float* x, float* y, long long columns) {
    __shared__ double scratch[kThreads / 32];
    const float* row = x + blockIdx.x * columns;
    float own = -INFINITY;
    for (long long i = threadIdx.x; i < columns; i += kThreads) own = fmaxf(own, row[i]);  // passes over NaN: the sum does not
    const double largest = reduce_block(static_cast<double>(own), Largest(), scratch);
    double sum = 0.0;
    for (long long i = threadIdx.x; i < columns; i += kThreads) sum += exp(static_cast<double>(row[i]) - largest);
    sum = reduce_block(sum, Sum(), scratch);
    if (threadIdx.x == 0) y[blockIdx.x] = static_cast<float>(largest + log(sum));
}

}  // namespace

void log_sum_exp_rows(const Context& context, const Tensor& x, const Tensor& y) {
    log_sum_exp_kernel<<<static_cast<unsigned>(x.rows()), kThreads, 0, static_cast<cudaStream_t>(context.stream().handle)>>>(
        x.f32(), y.f32(), x.row_elements());
    DFLASH_LAUNCH_CHECK("log_sum_exp_rows");
}

}  // namespace dflash::cuda
