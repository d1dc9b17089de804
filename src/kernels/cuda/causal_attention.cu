// SPDX-License-Identifier: MIT
// The target's attention with mma.sync and cp.async. Rows of a block are (token, head of the kv head's group), packed, so that a group's heads share
// each key tile. Tokens of a block that begin at one key are a run: of one document, in packed batches. A run's key tiles start at its first key, and
// a tile that shows a row nothing leaves its sums as they are, so a row's bits depend on its own keys alone.
// A few rows over a longer cache (decoding) are cut along the keys into splits, of a length that the cache's size alone decides; their results are
// put together by a second kernel in the order of the keys.
// Bound: matrix instructions in packed batches, bytes of the cache in decoding.
#include "kernels/backends.h"
#include "kernels/cuda/device/mask.cuh"
#include "kernels/cuda/device/occupancy.cuh"
#include "kernels/cuda/device/row_copy.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tile_config.h"
#include "kernels/cuda/workspace.h"

namespace dflash::cuda {
namespace {

using namespace device;  // NOLINT(google-build-using-namespace): the kernels are written in its terms

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = 16 * kWarps;
constexpr int kCombineThreads = 128;
constexpr unsigned kAll = 0xffffffffU;
constexpr int kMostHeadDim = 256;
constexpr int kWholeRange = 1 << 30;  // one split: no row has so many keys

template <int kD>
constexpr int kKeyWidth = kD <= 128 ? 64 : 32;
static_assert(kAttentionSplitKeys % 64 == 0);

struct Problem {
    const Bf16Bits *q, *k, *v;
    const int *key_begin, *key_end;
    Bf16Bits* out;
    float* partial;      // (splits, rows, H, D): results of the splits; null where there is one
    float* partial_lse;  // (splits, rows, H)
    int rows, heads, kv_heads, group, head_dim;
    int split_keys;
    float scale;

    __device__ __forceinline__ std::int64_t row_index(int token, int head) const { return static_cast<std::int64_t>(token) * heads + head; }
};

// Tokens [first, end) of a block that begin at one key; tokens that see nothing belong to any run.
struct Run {
    int end;
    int key_begin, key_end;  // of all its tokens
    int full_end;            // keys before it are seen by all that see anything
};
// For all lanes of a warp.
__device__ __forceinline__ Run find_run(const int2* ranges, int first, int tokens) {
    const int lane = threadIdx.x % 32;
    Run run{first, 0, 0, kNoRow};
    bool begun = false;
    while (run.end < tokens) {
        const int token = run.end + lane;
        const int2 range = token < tokens ? ranges[token] : make_int2(0, 0);
        const bool live = range.y > range.x;
        const unsigned lives = __ballot_sync(kAll, live);
        if (!begun && lives != 0) {
            run.key_begin = __shfl_sync(kAll, range.x, __ffs(static_cast<int>(lives)) - 1);
            begun = true;
        }
        const unsigned others = __ballot_sync(kAll, token >= tokens || (live && range.x != run.key_begin));
        const int taken = others == 0 ? 32 : __ffs(static_cast<int>(others)) - 1;
        const bool own = live && lane < taken;
        run.key_end = max(run.key_end, __reduce_max_sync(kAll, own ? range.y : 0));
        run.full_end = min(run.full_end, __reduce_min_sync(kAll, own ? range.y : kNoRow));
        run.end += taken;
        if (taken < 32) break;
    }
    return run;
}

// Values that are not finite would reach rows that may not see them, as 0 * NaN. In the part of a tile (at `memory`, from `key` on) that this thread
// has copied they become zero, and `bad_key` the first key that had one.
template <int kD, int kWidth>
__device__ __forceinline__ void take_out_bad_values(SharedTile<kD> tile, Bf16Bits* memory, int key, int* bad_key) {
    const RowCopy<kD, kWidth, kThreads> copy;
#pragma unroll 1  // rare, and the loop around it has no registers left
    for (int r = copy.row; r < kWidth; r += copy.kStep) {
        auto* chunk = reinterpret_cast<uint4*>(memory) + (tile.chunk(r, copy.column / 8) - tile.base) / 16;
        const uint4 bits = *chunk;
        const auto bad = [](std::uint32_t w) { return (w & 0x7f80U) == 0x7f80U || (w & 0x7f800000U) == 0x7f800000U; };
        if (bad(bits.x) || bad(bits.y) || bad(bits.z) || bad(bits.w)) {
            *chunk = make_uint4(0, 0, 0, 0);
            atomicMin(bad_key, key + r);
        }
    }
}

template <int kD>
struct Shared {
    static constexpr int kWidth = kKeyWidth<kD>;
    Bf16Bits q[kRows * kD], k[kWidth * kD], v[kWidth * kD];
    int2 ranges[kRows];  // of the block's tokens
    int bad_key;         // first one of the run with a value that was taken out
};
template <int kD>
constexpr int kBlocks = kD <= 128 ? shared_by_two(sizeof(Shared<kD>)) : 1;  // beyond, an accumulator fills the registers

// A thread's row in accumulator order: lane / 4 of its warp's rows, and (half 1) 8 further on.
__device__ __forceinline__ int own_row(int half) {
    return 16 * static_cast<int>(threadIdx.x / 32) + static_cast<int>(threadIdx.x % 32) / 4 + 8 * half;
}
// Its token's last key + 1; 0 for a token outside the run [first, run.end) or without keys.
__device__ __forceinline__ int own_key_end(const int2* ranges, const Run& run, int first, int token) {
    const int2 range = token >= first && token < run.end ? ranges[token] : make_int2(0, 0);
    return range.y > range.x ? range.y : 0;
}

template <int kD>
__global__ void __launch_bounds__(kThreads, kBlocks<kD>) causal_attention_kernel(const __grid_constant__ Problem p) {
    constexpr int kWidth = kKeyWidth<kD>;
    constexpr int kN = kWidth / 8;
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<kD>*>(memory);
    const SharedTile<kD> q{shared_address(shared.q)}, k{shared_address(shared.k)}, v{shared_address(shared.v)};
    const int lane = threadIdx.x % 32, warp_row = 16 * (threadIdx.x / 32);
    const int kv_head = blockIdx.x;
    const int block_tokens = kRows / p.group;
    const int block_token = (static_cast<int>(gridDim.y) - 1 - static_cast<int>(blockIdx.y)) * block_tokens;  // long ranges first
    const int tokens = min(block_tokens, p.rows - block_token);
    const auto head_of = [&](int row) { return kv_head * p.group + row % p.group; };

    RowCopy<kD, kRows, kThreads>().some(q, p.head_dim, [&](int row) -> const Bf16Bits* {
        const int token = row / p.group;
        return token < tokens ? p.q + p.row_index(block_token + token, head_of(row)) * p.head_dim : nullptr;
    });
    copy_async_commit();
    for (int token = threadIdx.x; token < tokens; token += kThreads)
        shared.ranges[token] = make_int2(p.key_begin[block_token + token], p.key_end[block_token + token]);
    __syncthreads();

    const std::int64_t stride = static_cast<std::int64_t>(p.kv_heads) * p.head_dim;
    const float scale2 = p.scale * kLog2E;
#pragma unroll 1
    for (int first = 0; first < tokens;) {
        const Run run = find_run(shared.ranges, first, tokens);
        // Made again where needed rather than kept: two blocks a multiprocessor leave 128 registers a thread.
        const auto key_end = [&](int half) { return own_key_end(shared.ranges, run, first, own_row(half) / p.group); };
        const int warp_key_end = __reduce_max_sync(kAll, max(key_end(0), key_end(1)));
        const int key_first = run.key_begin + static_cast<int>(blockIdx.z) * p.split_keys;
        const int key_last = min(run.key_end, key_first + p.split_keys);
        // Rows [key, key + kWidth) of the keys or values, zeros from the run's end on.
        const auto load = [&](SharedTile<kD> tile, const Bf16Bits* source, int key) {
            const RowCopy<kD, kWidth, kThreads> copy;
            const Bf16Bits* head = source + static_cast<std::int64_t>(kv_head) * p.head_dim;
            if (key + kWidth <= key_last) {
                copy.all(tile, p.head_dim, head + (key + copy.row) * stride, copy.kStep * stride);
            } else if (key < key_last) {
                copy.some(tile, p.head_dim, [&](int row) { return key + row < key_last ? head + (key + row) * stride : nullptr; });
            }
            copy_async_commit();
        };

        float o[kD / 8][4];
        fill_zero(o);
        OnlineSoftmax softmax;
        __syncthreads();  // everyone is done with the run before
        if (threadIdx.x == 0) shared.bad_key = kNoRow;
        load(k, p.k, key_first);
#pragma unroll 1
        for (int key = key_first; key < key_last; key += kWidth) {
            const bool masked = key + kWidth > run.full_end;
            const bool sees = warp_key_end > key;
            copy_async_wait<0>();
            __syncthreads();  // keys are there, and everyone is done with the values before
            load(v, p.v, key);
            float s[kN][4];
            fill_zero(s);
            const int lane_again = made_again(lane);
            if (sees) multiply_rows(s, q, warp_row, k, lane_again);
            copy_async_wait<0>();
            if (masked) take_out_bad_values<kD, kWidth>(v, shared.v, key, &shared.bad_key);
            __syncthreads();  // values are there, and everyone is done with the keys
            load(k, p.k, key + kWidth);
            if (!sees) continue;
            if (masked) {
                const SeenBits seen{{columns_below<kN>(key_end(0) - key, lane), columns_below<kN>(key_end(1) - key, lane)}};
                fill_unseen(s, seen, -__builtin_huge_valf());
            }
            float rescale[2];
            softmax.step(s, scale2, rescale);
            rescale_changed_rows(o, rescale);
            std::uint32_t packed[kN][2];
            pack_fragments(s, packed);
            multiply_columns<kD>(o, packed, v, lane_again);
        }

        const bool live[2] = {key_end(0) > 0, key_end(1) > 0};
        float inverse[2], lse[2];
        softmax.finish(scale2, live, inverse, lse);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (key_first < key_last && key_end(h) > shared.bad_key) inverse[h] = __builtin_nanf("");
        }
        rescale_rows(o, inverse);
        Bf16Bits* destination[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int token = own_row(h) / p.group;
            const std::int64_t index = p.row_index(block_token + token, head_of(own_row(h)));
            destination[h] = token >= first && token < run.end ? p.out + index * p.head_dim : nullptr;
            if (p.partial == nullptr || key_end(h) <= key_first) continue;  // or the row's range ends before this split
            const std::int64_t at = static_cast<std::int64_t>(blockIdx.z) * p.rows * p.heads + index;
            if (lane % 4 == 0) p.partial_lse[at] = lse[h];
#pragma unroll
            for (int n = 0; n < kD / 8; ++n) {
                const int d = 8 * n + 2 * (lane & 3);
                if (d < p.head_dim) *reinterpret_cast<float2*>(p.partial + at * p.head_dim + d) = make_float2(o[n][2 * h], o[n][2 * h + 1]);
            }
        }
        if (p.partial == nullptr) store_rows(o, destination, live, p.head_dim, lane);
        first = run.end;
    }
}

// A block a row and head: the splits weighed by their sums of exponentials.
__global__ void __launch_bounds__(kCombineThreads) combine_splits_kernel(const __grid_constant__ Problem p) {
    const int token = blockIdx.x;
    const std::int64_t row = p.row_index(token, blockIdx.y), step = static_cast<std::int64_t>(p.rows) * p.heads;
    const int keys = p.key_end[token] - p.key_begin[token];
    const int splits = keys > 0 ? (keys + p.split_keys - 1) / p.split_keys : 0;
    float largest = -__builtin_huge_valf();
    for (int s = 0; s < splits; ++s) largest = fmaxf(largest, p.partial_lse[s * step + row]);
    for (int d = threadIdx.x; d < p.head_dim; d += kCombineThreads) {
        float sum = 0, weights = 0;
        for (int s = 0; s < splits; ++s) {
            const std::int64_t at = s * step + row;
            const float weight = __expf(p.partial_lse[at] - largest);
            weights += weight;
            sum += weight * p.partial[at * p.head_dim + d];
        }
        p.out[row * p.head_dim + d] = static_cast<Bf16Bits>(pack_bf16(splits > 0 ? sum / weights : 0.0F, 0.0F));
    }
}

template <int kD>
void launch_dim(const Context& context, const Problem& problem, int splits) {
    constexpr std::size_t kBytes = sizeof(Shared<kD>);
    static_assert(kBytes <= kSharedBytesPortable);
    DFLASH_CUDA(cudaFuncSetAttribute(causal_attention_kernel<kD>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes)));
    const int block_tokens = kRows / problem.group;
    const dim3 grid(static_cast<unsigned>(problem.kv_heads), static_cast<unsigned>((problem.rows + block_tokens - 1) / block_tokens),
                    static_cast<unsigned>(splits));
    causal_attention_kernel<kD><<<grid, kThreads, kBytes, stream_of(context)>>>(problem);
    DFLASH_LAUNCH_CHECK("causal_attention");
}

}  // namespace

void causal_attention_forward(const Context& context, const CausalAttentionParams& p) {
    check_bf16("causal_attention", {&p.q, &p.k, &p.v, &p.out});
    const std::int64_t rows = p.q.shape[0], heads = p.q.shape[1], head_dim = p.q.shape[2], key_rows = p.k.shape[0];
    const std::int64_t group = heads / p.k.shape[1];
    if (head_dim > kMostHeadDim || group > kRows || !in_vectors(head_dim, {&p.q, &p.k, &p.v, &p.out})) {
        throw_cuda("causal_attention: " + std::to_string(group) + " heads of " + std::to_string(head_dim) +
                   " a kv head: head dims that are multiples of 8 up to 256, in memory that is aligned to 16 bytes, and at most 128 heads "
                   "are built");
    }
    DFLASH_CHECK(p.scale > 0, "causal_attention: scale {}", p.scale);
    const auto bits = [](const Tensor& tensor) { return static_cast<Bf16Bits*>(tensor.data); };
    Problem problem{bits(p.q),
                    bits(p.k),
                    bits(p.v),
                    p.key_begin.i32(),
                    p.key_end.i32(),
                    bits(p.out),
                    nullptr,
                    nullptr,
                    static_cast<int>(rows),
                    static_cast<int>(heads),
                    static_cast<int>(p.k.shape[1]),
                    static_cast<int>(group),
                    static_cast<int>(head_dim),
                    kWholeRange,
                    p.scale};
    const std::int64_t splits = attention_splits(rows, key_rows);
    if (splits > 1) {
        problem.split_keys = static_cast<int>(attention_split_keys(key_rows));
        problem.partial = static_cast<float*>(context.workspace(causal_attention_workspace_bytes(rows, key_rows, heads, head_dim)));
        problem.partial_lse = problem.partial + splits * rows * heads * head_dim;
    }
    const auto grid_splits = static_cast<int>(splits);
    if (head_dim <= 64) {
        launch_dim<64>(context, problem, grid_splits);
    } else if (head_dim <= 128) {
        launch_dim<128>(context, problem, grid_splits);
    } else {
        launch_dim<kMostHeadDim>(context, problem, grid_splits);
    }
    if (splits == 1) return;
    const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(heads));
    combine_splits_kernel<<<grid, kCombineThreads, 0, stream_of(context)>>>(problem);
    DFLASH_LAUNCH_CHECK("causal_attention, splits");
}

}  // namespace dflash::cuda
