// SPDX-License-Identifier: MIT
// Anchor attention with mma.sync and cp.async: sm_80 and everything later.
//
// Rows are (token, head of the kv head's group), packed: row r of a tile is token r / R, head r % R, R = H / G, so all heads of a group
// share each key tile. Three kernels, all in the style "one stationary operand per warp, moving tiles through two shared buffers":
//   forward   O_i = sum_j softmax(q_i k_j) v_j                      stationary Q, moving K and V
//   query     dQ_i = scale sum_j dS_ij k_j,  dS = P (dO V^T - delta)  stationary Q and dO, moving K and V
//   key       dV_j = sum_i P_ij dO_i,  dK_j = scale sum_i dS_ij q_i   stationary K and V, moving Q and dO
// dS and P go from accumulators to the next product without leaving registers. No atomics: each output is written by one thread.
// Bound: shared-memory reads of the moving tiles, 16 rows a warp.
#include <algorithm>

#include "kernels/cuda/anchor_attention_args.h"
#include "kernels/cuda/device/mask.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/occupancy.cuh"
#include "kernels/cuda/device/row_copy.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/tile_config.h"

namespace dflash::cuda::portable {

namespace {

using namespace device;  // NOLINT(google-build-using-namespace): the kernels are written in its terms

struct Problem {
    AnchorMask mask;
    int context_rows, tokens, heads, kv_heads, group, head_dim;
    float scale;
};

Problem make_problem(const AnchorAttentionShape& s, const AnchorAttentionInputs& in) {
    return {{in.begin_row, in.anchor_row, s.block_size, s.live_tokens, s.window, s.causal_block ? 1 : 0},
            s.context_rows,
            s.tokens,
            s.heads,
            s.kv_heads,
            s.group(),
            s.head_dim,
            s.scale};
}

// Row r of a query tile that starts at `token` for kv head `kv_head`.
struct QueryRow {
    int token, head;
    bool live;
    __device__ __forceinline__ QueryRow(const Problem& p, int first_token, int row, int kv_head, int rows) {
        const int offset = row / p.group;
        token = first_token + offset;
        head = kv_head * p.group + row - offset * p.group;
        live = offset < rows / p.group && token < p.mask.live_tokens;
    }
    // A row that exists, dead or live: its outputs must be written.
    __device__ __forceinline__ bool exists(const Problem& p, int first_token, int rows) const {
        return token - first_token < rows / p.group && token < p.tokens;
    }
    __device__ __forceinline__ long long index(const Problem& p) const { return static_cast<long long>(token) * p.heads + head; }
};

__device__ __forceinline__ RowBounds query_bounds(const AnchorMask& mask, const QueryRow& row) {
    return row.live ? row_bounds(mask, row.token) : RowBounds{0, 0, 0, 0};
}

// A key tile's rows: context or block keys; rows outside, and in a masked tile rows that nobody sees, are zeros.
template <int kD, int kRows, int kThreads, typename Plan>
__device__ __forceinline__ void load_keys(SharedTile<kD> tile, const Problem& p, const Plan& plan, const KeyTile& t,
                                          const Bf16Bits* context, const Bf16Bits* block, int kv_head) {
    const RowCopy<kD, kRows, kThreads> copy;
    const long long stride = static_cast<long long>(p.kv_heads) * p.head_dim;
    const long long offset = static_cast<long long>(kv_head) * p.head_dim;
    if (plan.full(t)) {
        copy.all(tile, p.head_dim, context + (t.context + copy.row) * stride + offset, copy.kStep * stride);
        return;
    }
    copy.some(tile, p.head_dim, [&](int column) -> const Bf16Bits* {
        if (!plan.seen(p.mask, t, column)) return nullptr;
        return column < t.split ? context + (t.context + column) * stride + offset : block + (t.own + column - t.split) * stride + offset;
    });
}

template <int kD, int kRows, int kThreads>
__device__ __forceinline__ void load_queries(SharedTile<kD> tile, const Problem& p, const Bf16Bits* source, int token, int kv_head) {
    const RowCopy<kD, kRows, kThreads> copy;
    if (copy.kStep % p.group == 0 && token + kRows / p.group <= p.mask.live_tokens) {  // a thread's rows have one head
        const QueryRow first(p, token, copy.row, kv_head, kRows);
        copy.all(tile, p.head_dim, source + first.index(p) * p.head_dim,
                 static_cast<long long>(copy.kStep / p.group) * p.heads * p.head_dim);
        return;
    }
    copy.some(tile, p.head_dim, [&](int row) -> const Bf16Bits* {
        const QueryRow r(p, token, row, kv_head, kRows);
        return r.live ? source + r.index(p) * p.head_dim : nullptr;
    });
}

// Tiles with the longest prefixes first: anchors are sorted, so the last tokens.
__device__ __forceinline__ int last_first(int tiles) { return tiles - 1 - static_cast<int>(blockIdx.y); }

template <int kD, int kChoice>
constexpr int kForwardBlocks = kPortableForward[kChoice].warps == 8 ? shared_by_two(portable_bytes(kPortableForward[kChoice], kD, 1)) : 1;

template <int kD, int kChoice>
__global__ void __launch_bounds__(32 * kPortableForward[kChoice].warps, kForwardBlocks<kD, kChoice>)
    forward_kernel(Problem p, AnchorAttentionInputs in, Bf16Bits* out, float* lse, int tiles) {
    constexpr PortableTile kTile = kPortableForward[kChoice];
    constexpr int kThreads = 32 * kTile.warps;
    constexpr int kRows = 16 * kTile.warps;
    constexpr int kN = kTile.width / 8;
    extern __shared__ __align__(128) unsigned char shared[];
    const std::uint32_t base = shared_address(shared);
    constexpr int kKeyBytes = kTile.width * kD * 2;
    const SharedTile<kD> q{base};
    const std::uint32_t moving = base + kRows * kD * 2;
    const auto k_tile = [&](int i) { return SharedTile<kD>{moving + (i % kTile.stages) * 2 * kKeyBytes}; };
    const auto v_tile = [&](int i) { return SharedTile<kD>{moving + (i % kTile.stages) * 2 * kKeyBytes + kKeyBytes}; };

    const int lane = threadIdx.x % 32;
    const int warp_row = 16 * (threadIdx.x / 32);
    const int kv_head = blockIdx.x;
    const int tile_tokens = kRows / p.group;
    const int token = last_first(tiles) * tile_tokens;
    const auto plan = key_plan<kTile.width, kHopperFold>(p.mask, token, token + tile_tokens);
    // Made again where needed rather than kept: two CTAs an SM leave 128 registers a thread.
    const auto query = [&](int half) { return QueryRow(p, token, warp_row + lane / 4 + 8 * half, kv_head, kRows); };

    load_queries<kD, kRows, kThreads>(q, p, in.q, token, kv_head);
    const auto load_pair = [&](int i) {
        if (i < plan.tiles) {
            load_keys<kD, kTile.width, kThreads>(k_tile(i), p, plan, plan.tile(i), in.k_context, in.k_block, kv_head);
            load_keys<kD, kTile.width, kThreads>(v_tile(i), p, plan, plan.tile(i), in.v_context, in.v_block, kv_head);
        }
        copy_async_commit();
    };
    load_pair(0);

    float o[kD / 8][4];
    fill_zero(o);
    OnlineSoftmax softmax;
    const float scale2 = p.scale * kLog2E;
    for (int i = 0; i < plan.tiles; ++i) {
        copy_async_wait<0>();
        __syncthreads();  // tile i is there, and everyone is done with tile i - 1
        load_pair(i + 1);
        const int lane_again = made_again(lane), row_again = made_again(warp_row);
        float s[kN][4];
        fill_zero(s);
        multiply_rows(s, q, row_again, k_tile(i), lane_again);
        const KeyTile t = plan.tile(i);
        if (!plan.full(t)) {
            const RowBounds rows[2] = {query_bounds(p.mask, query(0)), query_bounds(p.mask, query(1))};
            fill_unseen(s, seen_by_rows<kN>(rows, t, lane_again), -__builtin_huge_valf());
        }
        float rescale[2];
        softmax.step(s, scale2, rescale);
        rescale_changed_rows(o, rescale);
        std::uint32_t packed[kN][2];
        pack_fragments(s, packed);
        multiply_columns<kD>(o, packed, v_tile(i), lane_again);
    }

    const QueryRow rows[2] = {query(0), query(1)};
    const bool live[2] = {rows[0].live, rows[1].live};
    float inverse[2], row_lse[2];
    softmax.finish(scale2, live, inverse, row_lse);
    Bf16Bits* destination[2];
    for (int h = 0; h < 2; ++h) {
        const bool exists = rows[h].exists(p, token, kRows);
        destination[h] = exists ? out + rows[h].index(p) * p.head_dim : nullptr;
        if (exists && lane % 4 == 0) lse[rows[h].index(p)] = row_lse[h];
    }
    rescale_rows(o, inverse);
    store_rows(o, destination, live, p.head_dim, lane);
}

template <int kD>
__global__ void __launch_bounds__(32 * kPortableQuery.warps, 2)
    query_kernel(Problem p, AnchorAttentionInputs in, const Bf16Bits* d_out, const float* lse, const float* delta, Bf16Bits* d_q,
                 int tiles) {
    constexpr PortableTile kTile = kPortableQuery;
    constexpr int kThreads = 32 * kTile.warps;
    constexpr int kRows = 16 * kTile.warps;
    constexpr int kN = kTile.width / 8;
    extern __shared__ __align__(128) unsigned char shared[];
    const std::uint32_t base = shared_address(shared);
    constexpr int kKeyBytes = kTile.width * kD * 2;
    const SharedTile<kD> q{base};
    const SharedTile<kD> grad{base + kRows * kD * 2};
    const std::uint32_t moving = base + 2 * kRows * kD * 2;
    const auto k_tile = [&](int i) { return SharedTile<kD>{moving + (i % kTile.stages) * 2 * kKeyBytes}; };
    const auto v_tile = [&](int i) { return SharedTile<kD>{moving + (i % kTile.stages) * 2 * kKeyBytes + kKeyBytes}; };

    const int lane = threadIdx.x % 32;
    const int warp_row = 16 * (threadIdx.x / 32);
    const int kv_head = blockIdx.x;
    const int tile_tokens = kRows / p.group;
    const int token = last_first(tiles) * tile_tokens;
    const auto plan = key_plan<kTile.width, kHopperFold>(p.mask, token, token + tile_tokens);
    const QueryRow query[2] = {{p, token, warp_row + lane / 4, kv_head, kRows}, {p, token, warp_row + lane / 4 + 8, kv_head, kRows}};
    RowBounds rows[2];
    float row_lse2[2], row_delta[2];
    for (int h = 0; h < 2; ++h) {
        rows[h] = query_bounds(p.mask, query[h]);
        row_lse2[h] = query[h].live ? lse[query[h].index(p)] * kLog2E : 0.0F;
        row_delta[h] = query[h].live ? delta[query[h].index(p)] : 0.0F;
    }

    load_queries<kD, kRows, kThreads>(q, p, in.q, token, kv_head);
    load_queries<kD, kRows, kThreads>(grad, p, d_out, token, kv_head);
    const auto load_pair = [&](int i) {
        if (i < plan.tiles) {
            load_keys<kD, kTile.width, kThreads>(k_tile(i), p, plan, plan.tile(i), in.k_context, in.k_block, kv_head);
            load_keys<kD, kTile.width, kThreads>(v_tile(i), p, plan, plan.tile(i), in.v_context, in.v_block, kv_head);
        }
        copy_async_commit();
    };
    load_pair(0);

    float dq[kD / 8][4];
    fill_zero(dq);
    const float scale2 = p.scale * kLog2E;
    for (int i = 0; i < plan.tiles; ++i) {
        copy_async_wait<0>();
        __syncthreads();
        load_pair(i + 1);
        float s[kN][4], dp[kN][4];
        fill_zero(s);
        fill_zero(dp);
        multiply_rows(s, q, warp_row, k_tile(i), lane);
        multiply_rows(dp, grad, warp_row, v_tile(i), lane);
        const KeyTile t = plan.tile(i);
        if (!plan.full(t)) {
            const SeenBits seen = seen_by_rows<kN>(rows, t, lane);
            fill_unseen(s, seen, -__builtin_huge_valf());
            fill_unseen(dp, seen, 0.0F);
        }
        std::uint32_t packed[kN][2];
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int h = e / 2;
                s[n][e] = exp2_fast(fmaf(s[n][e], scale2, -row_lse2[h])) * (dp[n][e] - row_delta[h]);
            }
        }
        pack_fragments(s, packed);
        multiply_columns<kD>(dq, packed, k_tile(i), lane);
    }

    Bf16Bits* destination[2];
    float factor[2];
    for (int h = 0; h < 2; ++h) {
        destination[h] = query[h].exists(p, token, kRows) ? d_q + query[h].index(p) * p.head_dim : nullptr;
        factor[h] = p.scale;
    }
    rescale_rows(dq, factor);
    store_rows(dq, destination, {query[0].live, query[1].live}, p.head_dim, lane);
}

struct KeyGradients {
    Bf16Bits *d_k_context, *d_v_context, *d_k_block, *d_v_block;
};

// First and last tile of query tokens that sees something of the context rows [key, key_end): every warp finds them for itself.
__device__ __forceinline__ int2 query_tile_range(const AnchorMask& mask, int key, int key_end, int tile_tokens) {
    const int tiles = (mask.live_tokens + tile_tokens - 1) / tile_tokens;
    int first = kNoRow, last = -1;
    for (int tile = threadIdx.x % 32; tile < tiles; tile += 32) {
        if (token_span(mask, tile * tile_tokens, (tile + 1) * tile_tokens).touches(key, key_end)) {
            first = min(first, tile);
            last = tile;
        }
    }
    return {__reduce_min_sync(0xffffffffU, first), __reduce_max_sync(0xffffffffU, last)};
}

// Key tiles [0, context_tiles) cover the context rows, the others the block keys.
template <int kD, int kChoice>
__global__ void __launch_bounds__(32 * kPortableKey[kChoice].warps, 2)
    key_kernel(Problem p, AnchorAttentionInputs in, const Bf16Bits* d_out, const float* lse, const float* delta, KeyGradients gradients,
               int context_tiles) {
    constexpr PortableTile kTile = kPortableKey[kChoice];
    constexpr int kThreads = 32 * kTile.warps;
    constexpr int kRows = 16 * kTile.warps;  // keys
    constexpr int kWidth = kTile.width;      // query rows of a moving tile
    constexpr int kN = kWidth / 8;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ __align__(16) int2 bounds[kTile.stages][kWidth];
    __shared__ float2 sums[kTile.stages][kWidth];  // lse (base 2), delta
    const std::uint32_t base = shared_address(shared);
    constexpr int kQueryBytes = kWidth * kD * 2;
    const SharedTile<kD> k{base};
    const SharedTile<kD> v{base + kRows * kD * 2};
    const std::uint32_t moving = base + 2 * kRows * kD * 2;
    const auto q_tile = [&](int i) { return SharedTile<kD>{moving + (i % kTile.stages) * 2 * kQueryBytes}; };
    const auto grad_tile = [&](int i) { return SharedTile<kD>{moving + (i % kTile.stages) * 2 * kQueryBytes + kQueryBytes}; };

    const int lane = threadIdx.x % 32;
    const int warp_row = 16 * (threadIdx.x / 32);
    const int kv_head = blockIdx.x;
    const bool own = static_cast<int>(blockIdx.y) >= context_tiles;
    const int key = (static_cast<int>(blockIdx.y) - (own ? context_tiles : 0)) * kRows;
    const int keys = own ? p.tokens : p.context_rows;      // rows that exist
    const int readable = own ? p.mask.live_tokens : keys;  // rows that may be read
    const int tile_tokens = kWidth / p.group;

    int2 range;
    if (own) {  // the tokens of the blocks that these keys belong to
        const int first_token = key / p.mask.block_size * p.mask.block_size;
        const int last_token = min((key + kRows - 1) / p.mask.block_size * p.mask.block_size + p.mask.block_size, p.mask.live_tokens) - 1;
        range = first_token <= last_token ? make_int2(first_token / tile_tokens, last_token / tile_tokens) : make_int2(0, -1);
    } else {
        range = query_tile_range(p.mask, key, key + kRows, tile_tokens);
    }
    const int tiles = max(range.y - range.x + 1, 0);

    const long long stride = static_cast<long long>(p.kv_heads) * p.head_dim;
    const auto load_stationary = [&](SharedTile<kD> tile, const Bf16Bits* source) {
        RowCopy<kD, kRows, kThreads>().some(tile, p.head_dim, [&](int row) -> const Bf16Bits* {
            return key + row < readable ? source + (key + row) * stride + kv_head * p.head_dim : nullptr;
        });
    };
    if (tiles > 0) {
        load_stationary(k, own ? in.k_block : in.k_context);
        load_stationary(v, own ? in.v_block : in.v_context);
    }
    const auto load_pair = [&](int i) {
        if (i < tiles) {
            const int token = (range.x + i) * tile_tokens;
            load_queries<kD, kWidth, kThreads>(q_tile(i), p, in.q, token, kv_head);
            load_queries<kD, kWidth, kThreads>(grad_tile(i), p, d_out, token, kv_head);
            for (int column = threadIdx.x; column < kWidth; column += kThreads) {
                const QueryRow r(p, token, column, kv_head, kWidth);
                const RowBounds b = query_bounds(p.mask, r);
                bounds[i % kTile.stages][column] = own ? make_int2(b.own_lo, b.own_hi) : make_int2(b.lo, b.hi);
                sums[i % kTile.stages][column] =
                    r.live ? make_float2(lse[r.index(p)] * kLog2E, delta[r.index(p)]) : make_float2(0.0F, 0.0F);
            }
        }
        copy_async_commit();
    };
    load_pair(0);

    float dk[kD / 8][4], dv[kD / 8][4];
    fill_zero(dk);
    fill_zero(dv);
    const float scale2 = p.scale * kLog2E;
    for (int i = 0; i < tiles; ++i) {
        copy_async_wait<0>();
        __syncthreads();
        load_pair(i + 1);
        float s[kN][4], dp[kN][4];
        fill_zero(s);
        fill_zero(dp);
        multiply_rows(s, k, warp_row, q_tile(i), lane);
        multiply_rows(dp, v, warp_row, grad_tile(i), lane);
        const int stage = i % kTile.stages;
        const int token = (range.x + i) * tile_tokens;
        const bool full = !own && token_span(p.mask, token, token + tile_tokens).covers(key, key + kRows);
        if (!full) {
            const SeenBits seen = seen_by_columns<kN>(bounds[stage], key + warp_row + lane / 4, lane);
            fill_unseen(s, seen, -__builtin_huge_valf());
            fill_unseen(dp, seen, 0.0F);
        }
        std::uint32_t p_packed[kN][2], ds_packed[kN][2];
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float2 sum = sums[stage][8 * n + 2 * (lane & 3) + (e & 1)];
                s[n][e] = exp2_fast(fmaf(s[n][e], scale2, -sum.x));
                dp[n][e] = s[n][e] * (dp[n][e] - sum.y);
            }
        }
        pack_fragments(s, p_packed);
        const int lane_again = made_again(lane);
        multiply_columns<kD>(dv, p_packed, grad_tile(i), lane_again);
        pack_fragments(dp, ds_packed);
        multiply_columns<kD>(dk, ds_packed, q_tile(i), lane_again);
    }

    Bf16Bits *dk_rows[2], *dv_rows[2];
    const float factor[2] = {p.scale, p.scale};
    for (int h = 0; h < 2; ++h) {
        const int row = key + warp_row + lane / 4 + 8 * h;
        const long long offset = row * stride + kv_head * p.head_dim;
        dk_rows[h] = row < keys ? (own ? gradients.d_k_block : gradients.d_k_context) + offset : nullptr;
        dv_rows[h] = row < keys ? (own ? gradients.d_v_block : gradients.d_v_context) + offset : nullptr;
    }
    rescale_rows(dk, factor);
    store_rows(dk, dk_rows, {true, true}, p.head_dim, lane);
    store_rows(dv, dv_rows, {true, true}, p.head_dim, lane);
}

int divide_up(int a, int b) { return (a + b - 1) / b; }

template <typename Kernel, typename... Args>
void launch(const char* name, Kernel* kernel, dim3 grid, int threads, std::size_t bytes, void* stream, Args... args) {
    if (grid.x == 0 || grid.y == 0) return;
    DFLASH_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
    kernel<<<grid, threads, bytes, static_cast<cudaStream_t>(stream)>>>(args...);
    DFLASH_LAUNCH_CHECK(name);
}

template <int kD, int kChoice>
void forward_tile(const AnchorAttentionForwardArgs& a, void* stream) {
    constexpr PortableTile kTile = kPortableForward[kChoice];
    constexpr std::size_t kBytes = portable_bytes(kTile, kD, 1);
    static_assert(kBytes <= kSharedBytesPortable);
    const int tiles = divide_up(a.shape.tokens, (16 * kTile.warps) / a.shape.group());
    launch("anchor attention forward (portable)", forward_kernel<kD, kChoice>, dim3(a.shape.kv_heads, tiles), 32 * kTile.warps, kBytes,
           stream, make_problem(a.shape, a.in), a.in, a.out, a.lse, tiles);
}

template <int kD>
void forward_dim(const AnchorAttentionForwardArgs& a, void* stream) {
    a.shape.tile == 0 ? forward_tile<kD, 0>(a, stream) : forward_tile<kD, 1>(a, stream);
}

template <int kD, int kChoice>
void key_tile(const AnchorAttentionBackwardArgs& a, const Problem& problem, void* stream) {
    constexpr PortableTile kTile = kPortableKey[kChoice];
    constexpr std::size_t kBytes = portable_bytes(kTile, kD, 2);
    static_assert(kBytes + 2048 <= kSharedBytesPortable);
    const int context_tiles = divide_up(a.shape.context_rows, (16 * kTile.warps));
    const int own_tiles = divide_up(a.shape.tokens, (16 * kTile.warps));
    const KeyGradients gradients{a.d_k_context, a.d_v_context, a.d_k_block, a.d_v_block};
    launch("anchor attention dK, dV (portable)", key_kernel<kD, kChoice>, dim3(a.shape.kv_heads, context_tiles + own_tiles),
           32 * kTile.warps, kBytes, stream, problem, a.in, a.d_out, a.lse, a.delta, gradients, context_tiles);
}

template <int kD>
void backward_dim(const AnchorAttentionBackwardArgs& a, void* stream) {
    constexpr std::size_t kQueryBytes = portable_bytes(kPortableQuery, kD, 2);
    static_assert(kQueryBytes <= kSharedBytesPortable);
    const Problem problem = make_problem(a.shape, a.in);
    const int query_tiles = divide_up(a.shape.tokens, (16 * kPortableQuery.warps) / a.shape.group());
    launch("anchor attention dQ (portable)", query_kernel<kD>, dim3(a.shape.kv_heads, query_tiles), 32 * kPortableQuery.warps, kQueryBytes,
           stream, problem, a.in, a.d_out, a.lse, a.delta, a.d_q, query_tiles);
    a.shape.tile == 0 ? key_tile<kD, 0>(a, problem, stream) : key_tile<kD, 1>(a, problem, stream);
}

}  // namespace

void forward(const AnchorAttentionForwardArgs& args, void* stream) {
    args.shape.head_dim <= 64 ? forward_dim<64>(args, stream) : forward_dim<128>(args, stream);
}

void backward(const AnchorAttentionBackwardArgs& args, void* stream) {
    anchor_attention_row_sums(args, stream);
    args.shape.head_dim <= 64 ? backward_dim<64>(args, stream) : backward_dim<128>(args, stream);
}

}  // namespace dflash::cuda::portable
