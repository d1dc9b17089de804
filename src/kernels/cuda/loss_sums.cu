// SPDX-License-Identifier: MIT
// A few thousand rows: one block, sums in a fixed order.
#include "kernels/backends.h"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/launch.cuh"

namespace dflash::cuda {
namespace {

constexpr int kThreads = 256;

// The thread of a block's first labelled slot takes the block's others too.
__global__ void dpace_kernel(const std::int32_t* rows, const float* label_prob, std::int64_t count, std::int64_t block_size, double alpha,
                             float* weight) {
    const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (begin >= count) return;
    const std::int64_t block = rows[begin] / block_size;
    if (begin > 0 && rows[begin - 1] / block_size == block) return;
    double product[kMaxBlockSize];
    double running = 1;
    int slots = 0;
    for (; begin + slots < count && rows[begin + slots] / block_size == block; ++slots) {
        running *= (1 - alpha) * static_cast<double>(label_prob[begin + slots]) + alpha;
        product[slots] = running;
    }
    double suffix = 0;
    for (int slot = slots; slot-- > 0;) {
        suffix += product[slot];
        weight[begin + slot] *= static_cast<float>(suffix);
    }
}

struct SumsArgs {
    const std::int32_t *rows, *correct;
    const float *loss, *weight;
    std::int64_t count;
    int block_size;
    double* sums;
};

__global__ void loss_sums_kernel(const __grid_constant__ SumsArgs a) {
    __shared__ double shared[kThreads / device::kWarp];
    __shared__ int slot_count[kMaxBlockSize], slot_correct[kMaxBlockSize];
    for (int slot = threadIdx.x; slot < a.block_size; slot += kThreads) slot_count[slot] = slot_correct[slot] = 0;
    __syncthreads();
    double loss = 0, weight = 0, accepted = 0;
    for (std::int64_t i = threadIdx.x; i < a.count; i += kThreads) {
        const int row = a.rows[i];
        loss += static_cast<double>(a.weight[i]) * static_cast<double>(a.loss[i]);
        weight += static_cast<double>(a.weight[i]);
        atomicAdd(&slot_count[row % a.block_size], 1);  // whole numbers: any order gives the same
        if (a.correct[i] == 0) continue;
        atomicAdd(&slot_correct[row % a.block_size], 1);
        bool unbroken = true;
        for (std::int64_t j = i - 1; unbroken && j >= 0 && a.rows[j] / a.block_size == row / a.block_size; --j)
            unbroken = a.correct[j] != 0;
        accepted += unbroken ? 1 : 0;
    }
    loss = device::block_sum<kThreads>(loss, shared);
    weight = device::block_sum<kThreads>(weight, shared);
    accepted = device::block_sum<kThreads>(accepted, shared);
    if (threadIdx.x == 0) {
        a.sums[kLossSum] += loss;
        a.sums[kWeightSum] += weight;
        a.sums[kAcceptedSum] += accepted;
    }
    for (int slot = threadIdx.x; slot < a.block_size; slot += kThreads) {
        a.sums[kSlotCount + slot] += slot_count[slot];
        a.sums[kSlotCount + a.block_size + slot] += slot_correct[slot];
    }
}

}  // namespace

void dpace_weights(const Context& context, const DpaceWeightsParams& p) {
    const std::int64_t count = p.rows.elements();
    dpace_kernel<<<blocks_for(count, kThreads, INT32_MAX), kThreads, 0, stream_of(context)>>>(p.rows.i32(), p.label_prob.f32(), count,
                                                                                              p.block_size, p.alpha, p.weight.f32());
    DFLASH_LAUNCH_CHECK("dpace_weights");
}

void loss_sums(const Context& context, const LossSumsParams& p) {
    const SumsArgs args{.rows = p.rows.i32(),
                        .correct = p.correct.i32(),
                        .loss = p.loss.f32(),
                        .weight = p.weight.f32(),
                        .count = p.rows.elements(),
                        .block_size = static_cast<int>(p.block_size),
                        .sums = p.sums.f64()};
    loss_sums_kernel<<<1, kThreads, 0, stream_of(context)>>>(args);
    DFLASH_LAUNCH_CHECK("loss_sums");
}

}  // namespace dflash::cuda
