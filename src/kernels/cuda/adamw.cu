// SPDX-License-Identifier: MIT
// All tensors in one launch: the table of them is a kernel parameter, and a block finds its piece by bisection. Bound by bytes: 26 a parameter
// with bf16 gradients (weight 4 + 4, gradient 2, moments 8 + 8), 28 with f32 ones.
#include <cmath>

#include "kernels/backends.h"
#include "kernels/cuda/device/split_weight.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/workspace.h"

namespace dflash::cuda {
namespace {

using device::load;
using device::store;

constexpr int kThreads = 256;
constexpr std::int64_t kPiece = 8192;  // elements of a tensor that a block takes at a time

struct UpdateEntry {
    void* weight;
    std::uint16_t* remainder;
    const void* gradient;
    float *m, *v;
    std::int64_t elements;
    std::int64_t first_piece;
    float weight_decay;
    bool bf16_gradient;
};
constexpr int kUpdateEntries = 448;  // a launch; with the rest of the arguments under the 32 KB that a kernel takes

struct UpdateArgs {
    UpdateEntry entries[kUpdateEntries];
    int count;
    float lr, beta1, beta2, eps, rate, v_scale;
    const double* grad_scale;
};
static_assert(sizeof(UpdateArgs) <= 32764);

struct SquareEntry {
    const void* gradient;
    std::int64_t elements;
    std::int64_t first_piece;
    bool bf16_gradient;
};
constexpr int kSquareEntries = 1000;
struct SquareArgs {
    SquareEntry entries[kSquareEntries];
    int count;
    std::int64_t pieces;
    double* partial;
};
static_assert(sizeof(SquareArgs) <= 32764);

// The entry whose pieces hold number `piece`.
template <typename Args>
__device__ __forceinline__ int entry_of(const Args& args, std::int64_t piece) {
    int low = 0, high = args.count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (args.entries[middle].first_piece <= piece) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

template <int kWidth>
__device__ __forceinline__ void update(const UpdateArgs& a, const UpdateEntry& e, float scale, std::int64_t at) {
    float w[kWidth], g[kWidth], m[kWidth], v[kWidth];
    device::load_weights<kWidth>(e.weight, e.remainder, at, w);
    device::load_gradient<kWidth>(e.gradient, e.bf16_gradient, at, g);
    load<kWidth>(e.m + at, m);
    load<kWidth>(e.v + at, v);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
        const float scaled = g[j] * scale;
        m[j] = a.beta1 * m[j] + (1.0F - a.beta1) * scaled;
        v[j] = a.beta2 * v[j] + (1.0F - a.beta2) * scaled * scaled;
        w[j] -= a.lr * e.weight_decay * w[j] + a.rate * m[j] / (sqrtf(v[j] * a.v_scale) + a.eps);
    }
    store<kWidth>(e.m + at, m);
    store<kWidth>(e.v + at, v);
    device::store_weights<kWidth>(e.weight, e.remainder, at, w);
}

// Buffers of a plan start on 256 bytes, so pieces are aligned for 16-byte accesses.
__global__ void __launch_bounds__(kThreads) adamw_kernel(const __grid_constant__ UpdateArgs a) {
    const double scale = *a.grad_scale;
    if (!isfinite(scale)) return;
    const UpdateEntry& e = a.entries[entry_of(a, blockIdx.x)];
    const std::int64_t begin = (blockIdx.x - e.first_piece) * kPiece;
    const std::int64_t end = min(begin + kPiece, e.elements);
    const std::int64_t vector_end = begin + (end - begin) / 8 * 8;
    for (std::int64_t i = begin + threadIdx.x * 8; i < vector_end; i += kThreads * 8) update<8>(a, e, static_cast<float>(scale), i);
    for (std::int64_t i = vector_end + threadIdx.x; i < end; i += kThreads) update<1>(a, e, static_cast<float>(scale), i);
}

__global__ void __launch_bounds__(kThreads) squares_kernel(const __grid_constant__ SquareArgs a) {
    __shared__ double shared[kThreads / device::kWarp];
    double sum = 0;
    for (std::int64_t piece = blockIdx.x; piece < a.pieces; piece += kSquarePartials) {
        const SquareEntry& e = a.entries[entry_of(a, piece)];
        const std::int64_t begin = (piece - e.first_piece) * kPiece;
        const std::int64_t end = min(begin + kPiece, e.elements);
        const std::int64_t vector_end = begin + (end - begin) / 8 * 8;
        float part = 0;  // of at most 33 squares, then widened
        for (std::int64_t i = begin + threadIdx.x * 8; i < vector_end; i += kThreads * 8) {
            float g[8];
            device::load_gradient<8>(e.gradient, e.bf16_gradient, i, g);
#pragma unroll
            for (int j = 0; j < 8; ++j) part += g[j] * g[j];
        }
        for (std::int64_t i = vector_end + threadIdx.x; i < end; i += kThreads) {
            float g[1];
            device::load_gradient<1>(e.gradient, e.bf16_gradient, i, g);
            part += g[0] * g[0];
        }
        sum += static_cast<double>(part);
    }
    sum = device::block_sum<kThreads>(sum, shared);
    if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

__global__ void scale_kernel(const double* partial, int partials, const double* sums, double max_norm, double* norm, double* scale) {
    __shared__ double shared[kThreads / device::kWarp];
    double squares = 0;
    for (int i = threadIdx.x; i < partials; i += kThreads) squares += partial[i];
    squares = device::block_sum<kThreads>(squares, shared);
    if (threadIdx.x != 0) return;
    const double loss_sum = sums[kLossSum], weight_sum = sums[kWeightSum];
    double new_norm = 0, new_scale = 0;
    if (weight_sum != 0) {
        new_norm = sqrt(squares) / weight_sum;
        new_scale = 1.0 / weight_sum;
        if (max_norm > 0 && new_norm > max_norm) new_scale *= max_norm / new_norm;
    }
    if (isnan(*scale) || !isfinite(loss_sum) || !isfinite(new_norm)) new_scale = nan("");
    *norm = new_norm;
    *scale = new_scale;
}

std::int64_t pieces_of(std::int64_t elements) { return (elements + kPiece - 1) / kPiece; }

}  // namespace

void adamw_step(const Context& context, const AdamWParams& p) {
    UpdateArgs args{};
    args.lr = p.lr;
    args.beta1 = p.beta1;
    args.beta2 = p.beta2;
    args.eps = p.eps;
    args.rate = static_cast<float>(p.lr / (1.0 - std::pow(static_cast<double>(p.beta1), static_cast<double>(p.step))));
    args.v_scale = static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(p.beta2), static_cast<double>(p.step))));
    args.grad_scale = p.grad_scale.f64();
    std::int64_t pieces = 0;
    const auto launch = [&] {
        if (pieces > 0) adamw_kernel<<<static_cast<unsigned>(pieces), kThreads, 0, stream_of(context)>>>(args);
        DFLASH_LAUNCH_CHECK("adamw_step");
        args.count = 0;
        pieces = 0;
    };
    for (const AdamWTensor& t : *p.tensors) {
        if (t.weight.elements() == 0) continue;
        if (args.count == kUpdateEntries) launch();
        args.entries[args.count++] = {.weight = t.weight.data,
                                      .remainder = static_cast<std::uint16_t*>(t.remainder.data),
                                      .gradient = t.gradient.data,
                                      .m = t.m.f32(),
                                      .v = t.v.f32(),
                                      .elements = t.weight.elements(),
                                      .first_piece = pieces,
                                      .weight_decay = t.weight_decay,
                                      .bf16_gradient = t.gradient.dtype == DType::kBF16};
        pieces += pieces_of(t.weight.elements());
    }
    launch();
}

void gradient_scale(const Context& context, const GradientScaleParams& p) {
    SquareArgs args{};
    args.partial = static_cast<double*>(context.workspace(gradient_scale_workspace_bytes()));
    DFLASH_CHECK(p.gradients->size() <= kSquareEntries, "gradient_scale: {} tensors, at most {} are built", p.gradients->size(),
                 kSquareEntries);
    for (const Tensor& g : *p.gradients) {
        if (g.elements() == 0) continue;
        args.entries[args.count++] = {
            .gradient = g.data, .elements = g.elements(), .first_piece = args.pieces, .bf16_gradient = g.dtype == DType::kBF16};
        args.pieces += pieces_of(g.elements());
    }
    squares_kernel<<<kSquarePartials, kThreads, 0, stream_of(context)>>>(args);
    DFLASH_LAUNCH_CHECK("gradient_scale, squares");
    scale_kernel<<<1, kThreads, 0, stream_of(context)>>>(args.partial, kSquarePartials, p.sums.f64(), p.max_norm, p.norm.f64(),
                                                         p.scale.f64());
    DFLASH_LAUNCH_CHECK("gradient_scale");
}

}  // namespace dflash::cuda
