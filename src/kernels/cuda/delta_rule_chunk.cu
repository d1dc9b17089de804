// SPDX-License-Identifier: MIT
// The gated delta rule in chunks of 64 rows, counted from the document's first token. With the notation of cpu/delta_rule.cpp and raw q and k, whose
// lengths go into the factors of rows (r_q, r_k), so that the products take them as they are:
//   T = (I + A)^-1 diag(beta),  P                                    no state in them: all chunks and heads at once (prepare_kernel)
//   N = T (V - e^G r_k K S),  O = e^G r_q Q S + P N,  S <- e^(G_n) S + K^T (e^(G_n - G) r_k N)     chunk after chunk (chain_kernel)
// The chain keeps S transposed in the accumulators of its warps, 16 value columns each, in f32; every product takes the accumulators of the one
// before as its left operand, so warps exchange nothing. Products in bf16 with f32 sums. Segments of kDeltaSegmentChunks chunks of the whole batch
// bound the scratch; a document that goes on beyond its segment leaves its state in memory, in f32, so segments change no result.
#include "kernels/backends.h"
#include "kernels/cuda/delta_rule_args.cuh"
#include "kernels/cuda/device/row_copy.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/tile_config.h"
#include "kernels/cuda/workspace.h"

namespace dflash::cuda {
namespace {

using namespace device;  // NOLINT(google-build-using-namespace): the kernels are written in its terms

constexpr int kThreads = 128;
constexpr int kChunk = kDeltaChunk;
constexpr int kSlice = 64;          // value columns of a block of the chain: 16 a warp
constexpr int kSolveBlock = 16;     // rows of the triangular solve that are kept in registers
constexpr int kPitch = kChunk + 4;  // of A transposed in shared memory
constexpr unsigned kAll = 0xffffffffU;

// What prepare_kernel leaves for a chunk of a head.
struct Prepared {
    Bf16Bits t[kChunk * kChunk];
    Bf16Bits p[kChunk * kChunk];
    float q_factor[kChunk];      // e^G r_q
    float k_factor[kChunk];      // e^G r_k
    float state_factor[kChunk];  // e^(G_n - G) r_k
    float decay[kChunk];         // e^(G_n), in the first
};
static_assert(sizeof(Prepared) == kDeltaPreparedBytes);

__device__ __forceinline__ int chunks_of(int rows) { return (rows + kChunk - 1) / kChunk; }

struct ChunkRows {
    std::int64_t row;
    int rows;  // 0: there is no such chunk
};
// Chunk number `chunk` of the batch; for all lanes of a warp.
__device__ __forceinline__ ChunkRows find_chunk(const DeltaArgs& a, int chunk) {
    const int lane = threadIdx.x % 32;
    int before = 0;
    for (int first = 0; first < a.documents; first += 32) {
        const bool there = first + lane < a.documents;
        const int begin = there ? a.document_begin[first + lane] : 0;
        const int length = there ? a.document_begin[first + lane + 1] - begin : 0;
        int upto = chunks_of(length);
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(kAll, upto, step);
            if (lane >= step) upto += other;
        }
        upto += before;
        const unsigned holds = __ballot_sync(kAll, chunk < upto);
        if (holds != 0) {
            const int owner = __ffs(static_cast<int>(holds)) - 1;
            const int offset = (chunk - (__shfl_sync(kAll, upto, owner) - chunks_of(__shfl_sync(kAll, length, owner)))) * kChunk;
            return {__shfl_sync(kAll, begin, owner) + offset, min(kChunk, __shfl_sync(kAll, length, owner) - offset)};
        }
        before = __shfl_sync(kAll, upto, 31);
    }
    return {0, 0};
}
// Chunks of the documents before this one.
__device__ __forceinline__ int chunks_before(const DeltaArgs& a, int document) {
    int count = 0;
    for (int d = threadIdx.x % 32; d < document; d += 32) count += chunks_of(a.document_begin[d + 1] - a.document_begin[d]);
    return static_cast<int>(__reduce_add_sync(kAll, static_cast<unsigned>(count)));
}

// Rows [0, rows) of a chunk from `first` on; zeros beyond, also beyond `columns`.
template <int kD>
__device__ __forceinline__ void copy_rows(SharedTile<kD> tile, const Bf16Bits* first, std::int64_t stride, int rows, int columns) {
    RowCopy<kD, kChunk, kThreads>().some(tile, columns, [&](int row) { return row < rows ? first + row * stride : nullptr; });
}

// ---- without the state ----

struct RowFactors {
    float r_q[kChunk], r_k[kChunk], beta[kChunk], decay_sum[kChunk];
};

// Sum of squares of a row of a tile, by one thread.
template <int kD>
__device__ __forceinline__ float row_squares(SharedTile<kD> tile, const unsigned char* shared, std::uint32_t base, int row) {
    float squares = 0;
#pragma unroll
    for (int c = 0; c < kD / 8; ++c) {
        const uint4 bits = *reinterpret_cast<const uint4*>(shared + (tile.chunk(row, c) - base));
        const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float low = __uint_as_float(words[i] << 16), high = __uint_as_float(words[i] & 0xffff0000U);
            squares += low * low + high * high;
        }
    }
    return squares;
}

// Gates of the chunk's rows and the sums of their log decays, by a warp with two rows a lane; rows beyond the end do nothing (beta 0, decay 1).
__device__ __forceinline__ void make_gates(const DeltaArgs& a, const ChunkRows& chunk, int head, RowFactors& f) {
    const int lane = threadIdx.x % 32;
    float decay[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = 2 * lane + i;
        const bool there = row < chunk.rows;
        f.beta[row] = there ? a.beta(chunk.row + row, head) : 0.0F;
        decay[i] = there ? a.log_decay(chunk.row + row, head) : 0.0F;
    }
    float sum = decay[0] + decay[1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float other = __shfl_up_sync(kAll, sum, step);
        if (lane >= step) sum += other;
    }
    f.decay_sum[2 * lane] = sum - decay[1];
    f.decay_sum[2 * lane + 1] = sum;
}

// Column `column` of (I + A)^-1 by forward substitution, in x (rows, columns); a_t is A transposed.
__device__ __forceinline__ void solve_column(const float* a_t, float* x, int column) {
    const int first = column / 32 * 32;  // rows before are zero in all columns of the warp
#pragma unroll 1
    for (int block = 0; block < kChunk; block += kSolveBlock) {
        float v[kSolveBlock];
#pragma unroll
        for (int r = 0; r < kSolveBlock; ++r) v[r] = block + r == column ? 1.0F : 0.0F;
        for (int j = first; j < block; ++j) {
            const float known = x[j * kChunk + column];
#pragma unroll
            for (int r = 0; r < kSolveBlock; r += 4) {
                const float4 part = *reinterpret_cast<const float4*>(a_t + j * kPitch + block + r);
                v[r] -= part.x * known, v[r + 1] -= part.y * known, v[r + 2] -= part.z * known, v[r + 3] -= part.w * known;
            }
        }
#pragma unroll
        for (int j = 0; j < kSolveBlock; ++j) {
            x[(block + j) * kChunk + column] = v[j];
#pragma unroll
            for (int r = j + 1; r < kSolveBlock; ++r) v[r] -= a_t[(block + j) * kPitch + block + r] * v[j];
        }
    }
}

template <int kD>
struct PrepareShared {
    static constexpr int kTileBytes = 2 * kChunk * kD * static_cast<int>(sizeof(Bf16Bits));  // K and Q, then the solution
    static_assert(kTileBytes >= kChunk * kChunk * static_cast<int>(sizeof(float)));
    __align__(128) unsigned char tiles[kTileBytes];
    __align__(16) float a_t[kChunk * kPitch];
    RowFactors f;
};

template <int kD>
__global__ void __launch_bounds__(kThreads) prepare_kernel(const __grid_constant__ DeltaArgs a, Prepared* prepared, int first_chunk) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<PrepareShared<kD>*>(memory);
    const int head = blockIdx.x;
    const ChunkRows chunk = find_chunk(a, first_chunk + static_cast<int>(blockIdx.y));
    if (chunk.rows == 0) return;
    Prepared& result = prepared[blockIdx.y * gridDim.x + head];
    const std::uint32_t base = shared_address(shared.tiles);
    const SharedTile<kD> k{base}, q{base + kChunk * kD * 2};
    copy_rows(k, a.k_row(chunk.row, head), a.channels(), chunk.rows, a.key_dim);
    copy_rows(q, a.q_row(chunk.row, head), a.channels(), chunk.rows, a.key_dim);
    copy_async_commit();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    RowFactors& f = shared.f;
    if (warp == 0) make_gates(a, chunk, head, f);
    copy_async_wait<0>();
    __syncthreads();
    const int own_row = threadIdx.x % kChunk;
    const float inverse = DeltaArgs::inverse_length(row_squares(threadIdx.x < kChunk ? k : q, shared.tiles, base, own_row));
    if (threadIdx.x < kChunk) {
        f.r_k[own_row] = inverse;
    } else {
        f.r_q[own_row] = inverse * a.q_scale();
    }
    __syncthreads();

    float k_products[kChunk / 8][4], q_products[kChunk / 8][4];
    fill_zero(k_products);
    fill_zero(q_products);
    multiply_rows(k_products, k, 16 * warp, k, lane);
    multiply_rows(q_products, q, 16 * warp, k, lane);
    Bf16Bits* p_rows[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int i = 16 * warp + lane / 4 + 8 * h;
        const float k_side = f.beta[i] * f.r_k[i], q_side = f.r_q[i], own = f.decay_sum[i];
        p_rows[h] = result.p + i * kChunk;
#pragma unroll
        for (int n = 0; n < kChunk / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int j = 8 * n + 2 * (lane & 3) + e;
                // beyond the diagonal the difference is positive and may overflow
                const float weight = i >= j ? __expf(own - f.decay_sum[j]) * f.r_k[j] : 0.0F;
                shared.a_t[j * kPitch + i] = i > j ? k_products[n][2 * h + e] * k_side * weight : 0.0F;
                q_products[n][2 * h + e] = i >= j ? q_products[n][2 * h + e] * q_side * weight : 0.0F;
            }
        }
    }
    store_rows(q_products, p_rows, {true, true}, kChunk, lane);
    if (threadIdx.x < kChunk) {
        const float sum = f.decay_sum[own_row], last = f.decay_sum[kChunk - 1];
        result.q_factor[own_row] = __expf(sum) * f.r_q[own_row];
        result.k_factor[own_row] = __expf(sum) * f.r_k[own_row];
        result.state_factor[own_row] = __expf(last - sum) * f.r_k[own_row];
        result.decay[own_row] = __expf(last);
    }
    __syncthreads();  // A is there, and the tiles may be written over
    auto* x = reinterpret_cast<float*>(shared.tiles);
    if (threadIdx.x < kChunk) solve_column(shared.a_t, x, own_row);
    __syncthreads();
    for (int i = threadIdx.x; i < kChunk * kChunk / 8; i += kThreads) {
        const float* from = x + i * 8;
        const float* beta = f.beta + i % (kChunk / 8) * 8;
        std::uint32_t words[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) words[w] = pack_bf16(from[2 * w] * beta[2 * w], from[2 * w + 1] * beta[2 * w + 1]);
        reinterpret_cast<uint4*>(result.t)[i] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// ---- along the chunks ----

template <int kD>
struct ChainStage {
    Bf16Bits k[kChunk * kD], q[kChunk * kD], v[kChunk * kSlice];
    Prepared prepared;  // with T and P swizzled
};

template <int kD>
struct ChainTiles {
    SharedTile<kD> k, q;
    SharedTile<kSlice> v;
    SharedTile<kChunk> t, p;
    explicit __device__ __forceinline__ ChainTiles(const ChainStage<kD>& stage)
        : k{shared_address(stage.k)},
          q{shared_address(stage.q)},
          v{shared_address(stage.v)},
          t{shared_address(stage.prepared.t)},
          p{shared_address(stage.prepared.p)} {}
};

template <int kD>
__device__ __forceinline__ void load_stage(ChainStage<kD>& stage, const DeltaArgs& a, const Prepared& from, std::int64_t row, int rows,
                                           int head, int first_column) {
    const ChainTiles<kD> tiles(stage);
    copy_rows(tiles.k, a.k_row(row, head), a.channels(), rows, a.key_dim);
    copy_rows(tiles.q, a.q_row(row, head), a.channels(), rows, a.key_dim);
    copy_rows(tiles.v, a.v_row(row, head) + first_column, a.channels(), rows, a.value_dim - first_column);
    copy_rows(tiles.t, from.t, kChunk, kChunk, kChunk);
    copy_rows(tiles.p, from.p, kChunk, kChunk, kChunk);
    constexpr int kFactorChunks = 4 * kChunk * static_cast<int>(sizeof(float)) / 16;
    if (threadIdx.x < kFactorChunks) {
        copy_async_16(shared_address(stage.prepared.q_factor) + 16 * threadIdx.x,
                      reinterpret_cast<const unsigned char*>(from.q_factor) + 16 * threadIdx.x, true);
    }
}

// acc[.][column] *= factor[column], column by column.
__device__ __forceinline__ void scale_columns(float (&acc)[kChunk / 8][4], const float* factor, int lane) {
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
        const float2 f = *reinterpret_cast<const float2*>(factor + 8 * n + 2 * (lane & 3));
        acc[n][0] *= f.x, acc[n][1] *= f.y, acc[n][2] *= f.x, acc[n][3] *= f.y;
    }
}

// One chunk for 16 value columns from `column` of the slice: state (transposed: value columns x key dimensions) and rows of out.
template <int kD>
__device__ __forceinline__ void advance(float (&state)[kD / 8][4], float (&o)[kChunk / 8][4], const ChainStage<kD>& stage, int column,
                                        int lane) {
    constexpr int kN = kChunk / 8;
    const ChainTiles<kD> tiles(stage);
    std::uint32_t before[kD / 8][2];
    pack_fragments(state, before);
    std::uint32_t n_packed[kN][2];
    {
        float recalled[kN][4];
        fill_zero(recalled);
        multiply_fragments<kD>(recalled, before, tiles.k, lane);
        scale_columns(recalled, stage.prepared.k_factor, lane);
        std::uint32_t r_packed[kN][2];
#pragma unroll
        for (int n = 0; n < kN; n += 2) {
            std::uint32_t v[4];  // V transposed: two groups of 8 rows, each with two groups of 8 value columns
            load_matrix_x4_transposed(v, tiles.v.chunk(8 * n + (lane & 7) + ((lane >> 4) << 3), column / 8 + ((lane >> 3) & 1)));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* r = recalled[n + i / 2] + 2 * (i % 2);
                r_packed[n + i / 2][i % 2] = pack_bf16(__uint_as_float(v[i] << 16) - r[0], __uint_as_float(v[i] & 0xffff0000U) - r[1]);
            }
        }
        float corrections[kN][4];
        fill_zero(corrections);
        multiply_fragments<kChunk, kN, true>(corrections, r_packed, tiles.t, lane);
        pack_fragments(corrections, n_packed);
        fill_zero(o);
        multiply_fragments<kD>(o, before, tiles.q, lane);
        scale_columns(o, stage.prepared.q_factor, lane);
        multiply_fragments<kChunk, kN, true>(o, n_packed, tiles.p, lane);
        scale_columns(corrections, stage.prepared.state_factor, lane);
        pack_fragments(corrections, n_packed);
    }
    const float decay = stage.prepared.decay[0];
    rescale_rows(state, {decay, decay});
    multiply_columns<kD>(state, n_packed, tiles.k, lane);
}

template <int kD>
__global__ void __launch_bounds__(kThreads) chain_kernel(const __grid_constant__ DeltaArgs a, const Prepared* prepared, int first_chunk,
                                                         const float* carry_in, float* carry_out, int stages) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto* ring = reinterpret_cast<ChainStage<kD>*>(memory);
    const int head = blockIdx.y, first_column = static_cast<int>(blockIdx.z) * kSlice;
    const int begin = a.document_begin[blockIdx.x];
    const int rows = a.document_begin[blockIdx.x + 1] - begin;
    const int document_first = chunks_before(a, static_cast<int>(blockIdx.x));  // chunk numbers of the batch
    const int document_last = document_first + chunks_of(rows);
    const int first = max(document_first, first_chunk), last = min(document_last, first_chunk + kDeltaSegmentChunks);
    if (first >= last) return;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const auto row_of = [&](int chunk) { return (chunk - document_first) * kChunk; };  // in the document
    const auto load = [&](int chunk) {
        if (chunk < last) {
            const Prepared& from = prepared[static_cast<std::int64_t>(chunk - first_chunk) * a.value_heads + head];
            const int row = row_of(chunk);
            load_stage(ring[(chunk - first) % stages], a, from, begin + row, min(kChunk, rows - row), head, first_column);
        }
        copy_async_commit();
    };
    load(first);

    const int column = first_column + 16 * warp;  // of the head's value columns
    float state[kD / 8][4];
    // visit(element of a state in memory, this thread's copy)
    const auto for_each_element = [&](const auto& visit) {
#pragma unroll
        for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int d = 8 * n + 2 * (lane & 3) + e % 2, v = column + lane / 4 + 8 * (e / 2);
                if (d < a.key_dim && v < a.value_dim)
                    visit(head * a.state_elements() + static_cast<std::int64_t>(d) * a.value_dim + v, state[n][e]);
            }
        }
    };
    fill_zero(state);
    const float* from = a.state != nullptr ? a.state : first > document_first ? carry_in : nullptr;
    if (from != nullptr) for_each_element([&](std::int64_t at, float& x) { x = from[at]; });

    for (int chunk = first; chunk < last; ++chunk) {
        copy_async_wait<0>();
        __syncthreads();  // the chunk is there, and everyone is done with the one before
        if (stages > 1) load(chunk + 1);
        if (column < a.value_dim) {
            float o[kChunk / 8][4];
            advance(state, o, ring[(chunk - first) % stages], 16 * warp, lane);
            const int row = row_of(chunk);
#pragma unroll
            for (int n = 0; n < kChunk / 8; ++n) {
                const int own_row = row + 8 * n + lane / 4;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const std::uint32_t pair = transpose_8x8(pack_bf16(o[n][2 * h], o[n][2 * h + 1]));
                    const int v = column + 8 * h + 2 * (lane & 3);
                    if (own_row < rows && v < a.value_dim) *reinterpret_cast<std::uint32_t*>(a.out_row(begin + own_row, head) + v) = pair;
                }
            }
        }
        if (stages == 1) {
            __syncthreads();
            load(chunk + 1);
        }
    }
    float* to = a.state != nullptr ? a.state : last < document_last ? carry_out : nullptr;
    if (to != nullptr) for_each_element([&](std::int64_t at, float& x) { to[at] = x; });
}

template <typename Kernel>
void allow_shared(Kernel* kernel, std::size_t bytes) {
    DFLASH_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

template <int kD>
void chunk_forward(const Context& context, const DeltaRuleParams& p) {
    const DeltaArgs args = delta_args("delta_rule_chunk", p);
    auto* prepared = static_cast<Prepared*>(context.workspace(delta_rule_workspace_bytes(p)));
    auto* carry = reinterpret_cast<float*>(prepared + kDeltaSegmentChunks * p.value_heads);
    const std::int64_t state_elements = p.value_heads * p.key_dim * p.value_dim;
    int most_shared = 0;
    DFLASH_CUDA(cudaDeviceGetAttribute(&most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, context.device().index));
    constexpr std::size_t kPrepareBytes = sizeof(PrepareShared<kD>), kStageBytes = sizeof(ChainStage<kD>);
    static_assert(kPrepareBytes <= kSharedBytesPortable && kStageBytes <= kSharedBytesPortable);
    const int stages = 2 * kStageBytes <= static_cast<std::size_t>(most_shared) ? 2 : 1;  // changes no result
    allow_shared(prepare_kernel<kD>, kPrepareBytes);
    allow_shared(chain_kernel<kD>, stages * kStageBytes);

    // Borders are in device memory: as many chunks as the rows may have, and blocks without one return at once.
    const auto chunks = static_cast<int>((p.qkv.rows() + (kChunk - 1) * args.documents) / kChunk);
    const auto heads = static_cast<unsigned>(args.value_heads);
    const dim3 chain_grid(static_cast<unsigned>(args.documents), heads, static_cast<unsigned>((args.value_dim + kSlice - 1) / kSlice));
    for (int first = 0; first < chunks; first += kDeltaSegmentChunks) {
        const dim3 grid(heads, static_cast<unsigned>(std::min(kDeltaSegmentChunks, chunks - first)));
        prepare_kernel<kD><<<grid, kThreads, kPrepareBytes, stream_of(context)>>>(args, prepared, first);
        DFLASH_LAUNCH_CHECK("delta_rule_chunk, products within chunks");
        // in turn: one document may leave its state while another, before it, takes up its own
        const int turn = first / kDeltaSegmentChunks % 2;
        chain_kernel<kD><<<chain_grid, kThreads, stages * kStageBytes, stream_of(context)>>>(
            args, prepared, first, carry + turn * state_elements, carry + (1 - turn) * state_elements, stages);
        DFLASH_LAUNCH_CHECK("delta_rule_chunk, state along the chunks");
    }
}

}  // namespace

void delta_rule_chunk_forward(const Context& context, const DeltaRuleParams& p) {
    if (p.key_dim > 128 || p.key_dim % kVector != 0 || p.value_dim % kVector != 0 || !in_vectors(p.value_dim, {&p.qkv, &p.out})) {
        throw_cuda("delta_rule_chunk: key heads of " + std::to_string(p.key_dim) + " and value heads of " + std::to_string(p.value_dim) +
                   ": multiples of 8 in memory that is aligned to 16 bytes are built, with key heads of at most 128");
    }
    p.key_dim <= 64 ? chunk_forward<64>(context, p) : chunk_forward<128>(context, p);
}

}  // namespace dflash::cuda
