// SPDX-License-Identifier: MIT
// One block a row: the largest value first, then the sum of exponentials in double, in a fixed order. Bound: device memory (the second pass
// mostly hits L2).
#include "kernels/backends.h"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/launch.cuh"

namespace dflash::cuda {
namespace {

constexpr int kThreads = 512;

struct Largest {
    __device__ double operator()(double a, double b) const { return a >= b ? a : b; }
};
__global__ void __launch_bounds__(kThreads) log_sum_exp_kernel(const float* x, float* y, long long columns) {
    __shared__ double scratch[kThreads / device::kWarp];
    const float* row = x + blockIdx.x * columns;
    float own = -INFINITY;
    for (long long i = threadIdx.x; i < columns; i += kThreads) own = fmaxf(own, row[i]);  // passes over NaN: the sum does not
    const double largest = device::block_reduce<kThreads>(static_cast<double>(own), Largest(), scratch);
    double sum = 0.0;
    for (long long i = threadIdx.x; i < columns; i += kThreads) sum += exp(static_cast<double>(row[i]) - largest);
    sum = device::block_sum<kThreads>(sum, scratch);
    if (threadIdx.x == 0) y[blockIdx.x] = static_cast<float>(largest + log(sum));
}

}  // namespace

void log_sum_exp_rows(const Context& context, const Tensor& x, const Tensor& y) {
    log_sum_exp_kernel<<<static_cast<unsigned>(x.rows()), kThreads, 0, stream_of(context)>>>(x.f32(), y.f32(), x.row_elements());
    DFLASH_LAUNCH_CHECK("log_sum_exp_rows");
}

}  // namespace dflash::cuda
