// SPDX-License-Identifier: MIT
#include <atomic>
#include <string>

#include "kernels/cuda/hopper_launch.h"

namespace dflash::cuda::hopper {

namespace {

constexpr unsigned kCounters = 256;
__device__ unsigned counters[kCounters];

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                                 const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                 CUtensorMapFloatOOBfill);

// Looked up at run time: the program need not link the driver library.
EncodeTiled encode_function() {
    static const EncodeTiled function = [] {
        void* entry = nullptr;
        cudaDriverEntryPointQueryResult found{};
        DFLASH_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
        if (found != cudaDriverEntryPointSuccess) throw_cuda("this driver has no cuTensorMapEncodeTiled");
        return reinterpret_cast<EncodeTiled>(entry);
    }();
    return function;
}

}  // namespace

CUtensorMap make_map(const Bf16Bits* data, int rows, int heads, int head_dim, int box_rows, int box_heads, const Bf16Bits* stand_in) {
    const bool empty = rows == 0;
    const cuuint64_t dims[3] = {static_cast<cuuint64_t>(head_dim), static_cast<cuuint64_t>(heads),
                                static_cast<cuuint64_t>(empty ? 1 : rows)};
    const cuuint64_t strides[2] = {dims[0] * 2, dims[0] * dims[1] * 2};
    const cuuint32_t box[3] = {64, static_cast<cuuint32_t>(box_heads), static_cast<cuuint32_t>(box_rows)};
    const cuuint32_t steps[3] = {1, 1, 1};
    CUtensorMap map;
    const CUresult status = encode_function()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<Bf16Bits*>(empty ? stand_in : data),
                                              dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status != CUDA_SUCCESS) {
        throw_cuda("no tensor map over (" + std::to_string(rows) + ", " + std::to_string(heads) + ", " + std::to_string(head_dim) +
                   "): error " + std::to_string(static_cast<int>(status)));
    }
    return map;
}

unsigned* work_counter() {
    static std::atomic<unsigned> turn{0};
    void* base = nullptr;
    DFLASH_CUDA(cudaGetSymbolAddress(&base, counters));
    return static_cast<unsigned*>(base) + turn.fetch_add(1, std::memory_order_relaxed) % kCounters;
}

int multiprocessors() {
    int device = 0, count = 0;
    DFLASH_CUDA(cudaGetDevice(&device));
    DFLASH_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
}

}  // namespace dflash::cuda::hopper
