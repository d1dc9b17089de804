// SPDX-License-Identifier: MIT
// Times the fused anchor attention on the training shapes, forward and backward, next to the device's own matrix ceiling:
//   attention_bench [--json [--anchors]] [--portable] [--once]
// --anchors adds each case's mask to its line, for a comparison on the same one.
// --once launches each kernel a single time and measures no ceiling: for a profiler.
// bf16, sorted anchors drawn uniformly, 20 launches after 5 and the median of them, CUDA events; the device rests before each measurement, so
// that every kernel is timed cold and none in the heat of another. TFLOP/s count unmasked pairs only: 4 D a
// pair and head forward, 10 D backward (five products, whatever the kernels recompute).
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/anchor_attention_args.h"
#include "kernels/cuda/launch_check.h"

namespace {

using namespace dflash::cuda;  // NOLINT(google-build-using-namespace): a small program around it

// Seeds are chosen so that the load (unmasked pairs) is that of the peer's measurement of the same shape.
struct Case {
    const char* name;
    int context, anchors, documents, window;
    unsigned seed;
};
constexpr Case kCases[] = {
    {"512 anchors, 8192 tokens, 1 document", 8192, 512, 1, 0, 281},
    {"512 anchors, 4 documents", 8192, 512, 4, 0, 292},
    {"512 anchors, 16 documents", 8192, 512, 16, 0, 74},
    {"256 anchors, 1 document", 8192, 256, 1, 0, 210},
    {"128 anchors, 1 document (2048 x 10240)", 8192, 128, 1, 0, 50},
    {"512 anchors, 1 document, window 2048", 8192, 512, 1, 2048, 281},
};
constexpr int kHeads = 32, kKvHeads = 8, kHeadDim = 128, kBlock = 16;
int warm_up = 5, runs = 20;

__global__ void fill_normal(__nv_bfloat16* data, std::size_t count, unsigned seed) {
    for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
         i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
        unsigned a = static_cast<unsigned>(i) * 2654435761U + seed, b = a ^ 0x9e3779b9U;
        const auto mix = [](unsigned x) {
            x ^= x >> 16;
            x *= 0x7feb352dU;
            x ^= x >> 15;
            x *= 0x846ca68bU;
            return x ^ (x >> 16);
        };
        const float u = (mix(a) + 1.0F) * 0x1p-32F, v = mix(b) * 0x1p-32F;
        data[i] = __float2bfloat16(sqrtf(-2.0F * __logf(fminf(u, 1.0F))) * __cosf(6.2831853F * v));
    }
}

template <typename T>
T* allocate(std::size_t count) {
    void* data = nullptr;
    DFLASH_CUDA(cudaMalloc(&data, count * sizeof(T)));
    DFLASH_CUDA(cudaMemset(data, 0, count * sizeof(T)));
    return static_cast<T*>(data);
}
Bf16Bits* random_bf16(std::size_t count, unsigned seed) {
    Bf16Bits* data = allocate<Bf16Bits>(count);
    fill_normal<<<1024, 256>>>(reinterpret_cast<__nv_bfloat16*>(data), count, seed * 7919U);
    DFLASH_LAUNCH_CHECK("fill");
    return data;
}

double median_ms(const std::function<void()>& work) {
    cudaEvent_t begin, end;
    DFLASH_CUDA(cudaEventCreate(&begin));
    DFLASH_CUDA(cudaEventCreate(&end));
    DFLASH_CUDA(cudaDeviceSynchronize());
    if (runs > 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    for (int i = 0; i < warm_up; ++i) work();
    std::vector<float> times;
    for (int i = 0; i < runs; ++i) {
        DFLASH_CUDA(cudaEventRecord(begin));
        work();
        DFLASH_CUDA(cudaEventRecord(end));
        DFLASH_CUDA(cudaEventSynchronize(end));
        times.push_back(0.0F);
        DFLASH_CUDA(cudaEventElapsedTime(&times.back(), begin, end));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// bf16 8192^3 through cuBLASLt, TFLOP/s.
double matmul_ceiling() {
    constexpr int kN = 8192;
    Bf16Bits* a = random_bf16(static_cast<std::size_t>(kN) * kN, 11);
    Bf16Bits* b = random_bf16(static_cast<std::size_t>(kN) * kN, 12);
    Bf16Bits* c = allocate<Bf16Bits>(static_cast<std::size_t>(kN) * kN);
    constexpr std::size_t kWorkspace = 64 << 20;
    void* workspace = allocate<char>(kWorkspace);
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t layout;
    cublasLtMatmulPreference_t preference;
    const auto check = [](cublasStatus_t status) {
        if (status != CUBLAS_STATUS_SUCCESS) throw_cuda("cuBLASLt status " + std::to_string(static_cast<int>(status)));
    };
    check(cublasLtCreate(&handle));
    check(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transpose = CUBLAS_OP_T;
    check(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose)));
    check(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, kN, kN, kN));
    check(cublasLtMatmulPreferenceCreate(&preference));
    check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace, sizeof(kWorkspace)));
    cublasLtMatmulHeuristicResult_t found[8];
    int count = 0;
    check(cublasLtMatmulAlgoGetHeuristic(handle, operation, layout, layout, layout, layout, preference, 8, found, &count));
    const float one = 1.0F, zero = 0.0F;
    double best = 1e30;
    for (int i = 0; i < std::min(count, 3); ++i) {
        best = std::min(best, median_ms([&] {
                            check(cublasLtMatmul(handle, operation, &one, a, layout, b, layout, &zero, c, layout, c, layout, &found[i].algo,
                                                 workspace, kWorkspace, nullptr));
                        }));
    }
    for (void* data : {static_cast<void*>(a), static_cast<void*>(b), static_cast<void*>(c), workspace}) DFLASH_CUDA(cudaFree(data));
    return 2.0 * kN * kN * kN / best / 1e9;
}

struct Anchors {
    std::vector<int> begin, anchor;
    double pairs = 0;  // of one head
};
Anchors draw(const Case& c) {
    std::vector<int> rows(c.context - 1);
    std::iota(rows.begin(), rows.end(), 1);
    std::mt19937 rng(c.seed);
    std::shuffle(rows.begin(), rows.end(), rng);
    Anchors a;
    a.anchor.assign(rows.begin(), rows.begin() + c.anchors);
    std::sort(a.anchor.begin(), a.anchor.end());
    const int length = c.context / c.documents;
    for (const int anchor : a.anchor) {
        a.begin.push_back(anchor / length * length);
        for (int slot = 0; slot < kBlock; ++slot) {
            const int lo = c.window > 0 ? std::max(a.begin.back(), anchor + slot - (c.window - 1)) : a.begin.back();
            a.pairs += anchor - lo + (c.window > 0 ? slot + 1 : kBlock);
        }
    }
    return a;
}

void print_list(const char* name, const std::vector<int>& values) {
    std::printf(", \"%s\": [", name);
    for (std::size_t i = 0; i < values.size(); ++i) std::printf("%s%d", i > 0 ? ", " : "", values[i]);
    std::printf("]");
}

void run_case(const Case& c, bool portable_back_end, double ceiling, bool json, bool print_anchors) {
    const Anchors anchors = draw(c);
    const std::size_t tokens = static_cast<std::size_t>(c.anchors) * kBlock;
    const std::size_t queries = tokens * kHeads * kHeadDim, keys = tokens * kKvHeads * kHeadDim;
    const std::size_t context = static_cast<std::size_t>(c.context) * kKvHeads * kHeadDim;
    std::vector<void*> owned;
    const auto keep = [&](auto* data) {
        owned.push_back(data);
        return data;
    };
    AnchorAttentionForwardArgs f{};
    f.shape = {c.context,
               static_cast<int>(tokens),
               static_cast<int>(tokens),
               kBlock,
               kHeads,
               kKvHeads,
               kHeadDim,
               c.window,
               c.window > 0,
               1.0F / std::sqrt(static_cast<float>(kHeadDim)),
               0};
    int* begin = keep(allocate<int>(anchors.begin.size()));
    int* anchor = keep(allocate<int>(anchors.anchor.size()));
    DFLASH_CUDA(cudaMemcpy(begin, anchors.begin.data(), anchors.begin.size() * sizeof(int), cudaMemcpyHostToDevice));
    DFLASH_CUDA(cudaMemcpy(anchor, anchors.anchor.data(), anchors.anchor.size() * sizeof(int), cudaMemcpyHostToDevice));
    f.in = {keep(random_bf16(queries, 1)),
            keep(random_bf16(context, 2)),
            keep(random_bf16(context, 3)),
            keep(random_bf16(keys, 4)),
            keep(random_bf16(keys, 5)),
            begin,
            anchor};
    f.out = keep(allocate<Bf16Bits>(queries));
    f.lse = keep(allocate<float>(tokens * kHeads));
    AnchorAttentionBackwardArgs b{};
    b.shape = f.shape;
    b.in = f.in;
    b.d_out = keep(random_bf16(queries, 6));
    b.out = f.out;
    b.lse = f.lse;
    b.delta = keep(allocate<float>(tokens * kHeads));
    b.d_q = keep(allocate<Bf16Bits>(queries));
    b.d_k_context = keep(allocate<Bf16Bits>(context));
    b.d_v_context = keep(allocate<Bf16Bits>(context));
    b.d_k_block = keep(allocate<Bf16Bits>(keys));
    b.d_v_block = keep(allocate<Bf16Bits>(keys));
    const double forward = median_ms([&] { portable_back_end ? portable::forward(f, nullptr) : hopper::forward(f, nullptr); });
    const double backward = median_ms([&] { portable_back_end ? portable::backward(b, nullptr) : hopper::backward(b, nullptr); });
    const double flop = 4.0 * kHeadDim * kHeads * anchors.pairs;
    const double forward_tflops = flop / forward / 1e9, backward_tflops = 2.5 * flop / backward / 1e9;
    const double extra_gb = 2.0 * static_cast<double>(tokens) * kHeads * sizeof(float) / 1e9;
    const char* back_end = portable_back_end ? "portable" : "hopper";
    if (json) {
        std::printf("{\"case\": \"%s\", \"back_end\": \"%s\", \"context\": %d, \"window\": %d, \"pairs\": %.0f, ", c.name, back_end,
                    c.context, c.window, anchors.pairs);
        std::printf("\"forward_ms\": %.4f, \"backward_ms\": %.4f, \"forward_tflops\": %.1f, \"backward_tflops\": %.1f, ", forward, backward,
                    forward_tflops, backward_tflops);
        std::printf("\"ceiling_tflops\": %.1f, \"extra_gb\": %.4f", ceiling, extra_gb);
        if (print_anchors) {
            print_list("begin", anchors.begin);
            print_list("anchor", anchors.anchor);
        }
        std::printf("}\n");
    } else {
        std::printf("%-40s %-8s %6.2fM | %7.3f ms %4.0f TFLOP/s %3.0f %% | %7.3f ms %4.0f TFLOP/s %3.0f %% | %.4f GB\n", c.name, back_end,
                    anchors.pairs / 1e6, forward, forward_tflops, 100 * forward_tflops / ceiling, backward, backward_tflops,
                    100 * backward_tflops / ceiling, extra_gb);
    }
    std::fflush(stdout);
    for (void* data : owned) DFLASH_CUDA(cudaFree(data));
}

}  // namespace

int main(int argc, char** argv) {
    bool json = false, print_anchors = false, portable_only = false, once = false;
    for (int i = 1; i < argc; ++i) {
        json |= std::strcmp(argv[i], "--json") == 0;
        portable_only |= std::strcmp(argv[i], "--portable") == 0;
        once |= std::strcmp(argv[i], "--once") == 0;
        print_anchors |= std::strcmp(argv[i], "--anchors") == 0;
    }
    if (once) {
        warm_up = 0;
        runs = 1;
    }
    try {
        cudaDeviceProp properties{};
        DFLASH_CUDA(cudaGetDeviceProperties(&properties, 0));
        const double ceiling = once ? 0.0 : matmul_ceiling();
        if (!json) {
            std::printf("%s, matmul bf16 8192^3: %.0f TFLOP/s\n", properties.name, ceiling);
            std::printf(
                "%d/%d heads of %d, blocks of %d; pairs of one head | forward, share of the ceiling | backward | lse and row sums\n",
                kHeads, kKvHeads, kHeadDim, kBlock);
        }
        const bool hopper_device = 10 * properties.major + properties.minor == 90;
        for (const Case& c : kCases) {
            if (hopper_device && !portable_only) run_case(c, false, ceiling, json, print_anchors);
        }
        for (const Case& c : kCases) run_case(c, true, ceiling, json, print_anchors);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
