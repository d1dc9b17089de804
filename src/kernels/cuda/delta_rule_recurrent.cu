// SPDX-License-Identifier: MIT
// The gated delta rule token by token, for decoding: a block takes 32 value columns of one document's head and keeps their part of the state in
// registers from the first row to the last, four threads a column. Everything is f32 but inputs and outputs. Bound by the bytes of the state.
#include "kernels/backends.h"
#include "kernels/cuda/delta_rule_args.cuh"
#include "kernels/cuda/device/vector.cuh"

namespace dflash::cuda {
namespace {

using device::kWarp;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kParts = 4;  // threads a column; neighbours, each with every fourth group of 4 key dimensions
constexpr int kColumns = kThreads / kParts;
constexpr int kBatch = 16;  // rows whose inputs are prepared together
static_assert(kColumns == kWarp);

template <int kD>
struct Inputs {
    float q[kBatch][kD], k[kBatch][kD];  // normalised
    float v[kBatch][kColumns];
    float beta[kBatch], decay[kBatch];
};

// x / |x| * scale, by a warp; zeros beyond the key dimension.
template <int kD>
__device__ __forceinline__ void normalise(const std::uint16_t* x, int n, float scale, float* y) {
    const int lane = threadIdx.x % kWarp;
    float v[kD / kWarp];
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kD / kWarp; ++i) {
        const int d = i * kWarp + lane;
        v[i] = d < n ? DeltaArgs::widen(x[d]) : 0.0F;
        squares += v[i] * v[i];
    }
    const float factor = DeltaArgs::inverse_length(device::warp_sum(squares)) * scale;
#pragma unroll
    for (int i = 0; i < kD / kWarp; ++i) y[i * kWarp + lane] = v[i] * factor;
}

__device__ __forceinline__ float sum_of_parts(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <int kD>
__global__ void __launch_bounds__(kThreads, 3) recurrent_kernel(const __grid_constant__ DeltaArgs a, float* states_after) {
    __shared__ __align__(16) Inputs<kD> in;
    const int head = blockIdx.y;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int part = threadIdx.x % kParts;
    const int slot = threadIdx.x / kParts;
    const int first_column = blockIdx.z * kColumns;
    const int column = first_column + slot;
    const std::int64_t begin = a.document_begin[blockIdx.x], end = a.document_begin[blockIdx.x + 1];
    // visit(element of the state, this thread's copy): groups of 4 key dimensions, one a part.
    float s[kD / kParts] = {};
    const auto for_each_element = [&](const auto& visit) {
#pragma unroll
        for (int i = 0; i < kD / kParts; ++i) {
            const int d = i / 4 * 4 * kParts + part * 4 + i % 4;
            if (column < a.value_dim && d < a.key_dim) visit(static_cast<std::int64_t>(d) * a.value_dim + column, s[i]);
        }
    };
    float* const state = a.state == nullptr ? nullptr : a.state + head * a.state_elements();
    if (state != nullptr) for_each_element([&](std::int64_t at, float& x) { x = state[at]; });

    for (std::int64_t batch = begin; batch < end; batch += kBatch) {
        const int count = static_cast<int>(min(static_cast<std::int64_t>(kBatch), end - batch));
        __syncthreads();  // everyone is done with the rows before
        for (int i = warp; i < count; i += kWarps) {
            normalise<kD>(a.q_row(batch + i, head), a.key_dim, a.q_scale(), in.q[i]);
            normalise<kD>(a.k_row(batch + i, head), a.key_dim, 1.0F, in.k[i]);
            in.v[i][lane] = first_column + lane < a.value_dim ? DeltaArgs::widen(a.v_row(batch + i, head)[first_column + lane]) : 0.0F;
            if (lane == 0) in.beta[i] = a.beta(batch + i, head);
            if (lane == 0) in.decay[i] = expf(a.log_decay(batch + i, head));
        }
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            const float decay = in.decay[i];
            float recalled = 0;
#pragma unroll
            for (int g = 0; g < kD / kParts / 4; ++g) {
                float k[4];
                device::load<4>(in.k[i] + (g * kParts + part) * 4, k);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    s[4 * g + e] *= decay;
                    recalled += s[4 * g + e] * k[e];
                }
            }
            const float correction = in.beta[i] * (in.v[i][slot] - sum_of_parts(recalled));
            float read = 0;
#pragma unroll
            for (int g = 0; g < kD / kParts / 4; ++g) {
                float k[4], q[4];
                device::load<4>(in.k[i] + (g * kParts + part) * 4, k);
                device::load<4>(in.q[i] + (g * kParts + part) * 4, q);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    s[4 * g + e] += k[e] * correction;
                    read += s[4 * g + e] * q[e];
                }
            }
            read = sum_of_parts(read);
            const std::int64_t row = batch + i;
            if (part == 0 && column < a.value_dim) a.out_row(row, head)[column] = __bfloat16_as_ushort(__float2bfloat16_rn(read));
            if (states_after != nullptr) {
                float* after = states_after + (row * a.value_heads + head) * a.state_elements();
                for_each_element([&](std::int64_t at, float& x) { after[at] = x; });
            }
        }
    }
    if (state != nullptr) for_each_element([&](std::int64_t at, float& x) { state[at] = x; });
}

}  // namespace

void delta_rule_recurrent_forward(const Context& context, const DeltaRuleParams& p) {
    const DeltaArgs args = delta_args("delta_rule_recurrent", p);
    const dim3 grid(static_cast<unsigned>(args.documents), static_cast<unsigned>(args.value_heads),
                    static_cast<unsigned>((args.value_dim + kColumns - 1) / kColumns));
    const auto launch = [&]<int kD>(std::integral_constant<int, kD>) {
        recurrent_kernel<kD><<<grid, kThreads, 0, stream_of(context)>>>(args, f32_or_null(p.states_after));
    };
    if (args.key_dim <= 64) {
        launch(std::integral_constant<int, 64>{});
    } else if (args.key_dim <= 128) {
        launch(std::integral_constant<int, 128>{});
    } else if (args.key_dim <= 256) {
        launch(std::integral_constant<int, 256>{});
    } else {
        throw_cuda("delta_rule_recurrent: key heads of " + std::to_string(args.key_dim) + ", at most 256 are built");
    }
    DFLASH_LAUNCH_CHECK("delta_rule_recurrent");
}

}  // namespace dflash::cuda
