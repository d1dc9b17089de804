// SPDX-License-Identifier: MIT
// delta_i = sum_d d_out_id * out_id, fp32: 16 threads a row, 16 bytes of each operand a thread. Bound: device memory.
#include "kernels/cuda/anchor_attention_args.h"
#include "kernels/cuda/launch_check.h"

namespace dflash::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kRowThreads = 16;

__device__ __forceinline__ float dot_pair(unsigned a, unsigned b) {
    const float low = __uint_as_float(a << 16) * __uint_as_float(b << 16);
    return fmaf(__uint_as_float(a & 0xffff0000U), __uint_as_float(b & 0xffff0000U), low);
}

__global__ void __launch_bounds__(kThreads)
    row_sums_kernel(const Bf16Bits* d_out, const Bf16Bits* out, float* delta, long long rows, long long live_rows, int head_dim) {
    const long long row = (static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x) / kRowThreads;
    const int column = 8 * (threadIdx.x % kRowThreads);
    float sum = 0.0F;
    if (row < live_rows && column < head_dim) {
        const uint4 a = *reinterpret_cast<const uint4*>(d_out + row * head_dim + column);
        const uint4 b = *reinterpret_cast<const uint4*>(out + row * head_dim + column);
        sum = dot_pair(a.x, b.x) + dot_pair(a.y, b.y) + (dot_pair(a.z, b.z) + dot_pair(a.w, b.w));
    }
    for (int step = kRowThreads / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, step);
    if (row < rows && column == 0) delta[row] = sum;
}

}  // namespace

void anchor_attention_row_sums(const AnchorAttentionBackwardArgs& args, void* stream) {
    const AnchorAttentionShape& s = args.shape;
    const long long rows = static_cast<long long>(s.tokens) * s.heads;
    if (rows == 0) return;
    const long long blocks = (rows * kRowThreads + kThreads - 1) / kThreads;
    row_sums_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        args.d_out, args.out, args.delta, rows, static_cast<long long>(s.live_tokens) * s.heads, s.head_dim);
    DFLASH_LAUNCH_CHECK("attention row sums");
}

}  // namespace dflash::cuda
