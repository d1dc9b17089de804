// SPDX-License-Identifier: MIT
// What the Hopper attention kernels share: work items, tiles in shared memory, and the producer of the kernels whose query rows are
// stationary (forward and dQ).
//
// A CTA has two units, each the 64 rows of one warpgroup: T = 64 / R tokens of one kv head's R query heads, row r being token r / R, head
// r % R. CTAs stay on their multiprocessor and take items from a counter, so that the loads of the next item overlap the end of this one.
// Which CTA computes an item changes nothing in its result.
#pragma once

#include "mask.cuh"
#include "wgmma.cuh"

namespace dflash::cuda::device {

constexpr int kUnit = 64;
constexpr int kUnits = 2;
constexpr int kKeys = 128;  // rows of a key tile
constexpr int kFold = 32;   // block keys that may share the last context tile
constexpr int kConsumerWarps = 4 * kUnits;
constexpr int kConsumerThreads = 32 * kConsumerWarps;
// The producing warps of a CTA. The planner works out items ahead of time, so that its chain of dependent loads delays nobody; the loader
// feeds the copy engine; the cleaner zeroes rows of key tiles that nobody sees. Registers are handed over by whole warpgroups, so there are four of them, idle or not.
constexpr int kLoaderWarp = kConsumerWarps;
constexpr int kPlannerWarp = kConsumerWarps + 1;
constexpr int kCleanerWarp = kConsumerWarps + 2;  // forward, dQ
constexpr int kColumnsWarp = kConsumerWarps + 2;  // dK, dV; two of them
constexpr int kHopperThreads = kConsumerThreads + 128;
constexpr int kProducerRegisters = 40;
constexpr int kConsumerRegisters = 232;  // (2 x 232 + 40) x 128 of 65,536
constexpr int kUnitBarrier = 3;          // and 4
constexpr int kOrderBarrier = 1;         // named barriers 1 and 2

constexpr int kKeyPanelBytes = kKeys * kPanelRowBytes;
constexpr int kUnitPanelBytes = kUnit * kPanelRowBytes;
template <int kD>
constexpr int kKeyTileBytes = kKeys* kD * 2;
template <int kD>
constexpr int kUnitBytes = kUnit* kD * 2;

struct HopperProblem {
    AnchorMask mask;
    int context_rows, tokens, heads, kv_heads, group, head_dim;
    int unit_tokens;  // T
    float scale;
    unsigned* counter;  // zero before and after each launch
    int items;
};

// The next item of this CTA, the same for all lanes; called once for each item taken, so that the counter wraps to zero.
__device__ __forceinline__ int next_item(const HopperProblem& p) {
    int item = 0;
    if (threadIdx.x % 32 == 0) item = static_cast<int>(atomicInc(p.counter, p.items - 1) + gridDim.x);
    return __shfl_sync(0xffffffffU, item, 0);
}

// Tensor maps of one key-like operand: context rows in boxes of 128 and of 32, block keys in boxes of 32.
struct KeyMapPointers {
    const void *wide, *context, *block;
};

template <int kD>
__device__ __forceinline__ void load_key_tile(unsigned char* tile, const KeyMapPointers& maps, std::uint64_t* barrier, const KeyTile& t,
                                              int kv_head) {
#pragma unroll
    for (int panel = 0; panel < kD / kPanelColumns; ++panel) {
        unsigned char* destination = tile + panel * kKeyPanelBytes;
        const int d = panel * kPanelColumns;
        if (t.split == kKeys) {
            copy_box(destination, maps.wide, barrier, d, kv_head, t.context);
            continue;
        }
        for (int row = 0; row < kKeys; row += kFold) {
            const bool context = row < t.split;
            copy_box(destination + row * kPanelRowBytes, context ? maps.context : maps.block, barrier, d, kv_head,
                     context ? t.context + row : t.own + row - t.split);
        }
    }
}

template <int kD>
__device__ __forceinline__ void load_unit(unsigned char* unit, const void* map, std::uint64_t* barrier, int first_head, int token) {
#pragma unroll
    for (int panel = 0; panel < kD / kPanelColumns; ++panel)
        copy_box(unit + panel * kUnitPanelBytes, map, barrier, panel * kPanelColumns, first_head, token);
}
// Writes a warp's 16 rows of a unit as bf16 into the unit's panels, swizzled as the copy engine reads them; zeros unless keep[h].
template <int kD>
__device__ __forceinline__ void stage_rows(const float (&acc)[kD / 8][4], unsigned char* unit, int warp_row, const bool (&keep)[2],
                                           int lane) {
    const int row = warp_row + lane % 16;
    const std::uint32_t base = shared_address(unit) + row * kPanelRowBytes;
#pragma unroll
    for (int n = 0; n < kD / 8; n += 2) {
        const int chunk = n + lane / 16;
        std::uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int h = i % 2;
            r[i] = keep[h] ? pack_bf16(acc[n + i / 2][2 * h], acc[n + i / 2][2 * h + 1]) : 0U;
        }
        store_matrix_x4(base + n / 8 * kUnitPanelBytes + ((chunk % 8) ^ (row % 8)) * 16, r[0], r[1], r[2], r[3]);
    }
}

__device__ __forceinline__ int unit_bytes(const HopperProblem& p, int head_dim_padded) {
    return p.unit_tokens * p.group * head_dim_padded * 2;
}

// Units whose group does not divide 64 leave rows that no copy writes: they must not hold NaN.
__device__ __forceinline__ void clear_tiles(const HopperProblem& p, unsigned char* tiles, int bytes) {
    if (p.unit_tokens * p.group == kUnit) return;
    for (int i = threadIdx.x * 16; i < bytes; i += kHopperThreads * 16) *reinterpret_cast<uint4*>(tiles + i) = make_uint4(0, 0, 0, 0);
    fence_async_proxy();
}

template <int kStages>
__device__ __forceinline__ void init_ring(Ring<kStages>& ring, int producers, int consumers) {
    for (int i = 0; i < kStages; ++i) {
        barrier_init(&ring.full[i], producers);
        barrier_init(&ring.empty[i], consumers);
    }
}
template <int kStages>
__device__ __forceinline__ void wait_full(Ring<kStages>& ring, const RingCursor<kStages>& at) {
    barrier_wait(&ring.full[at.stage], at.parity);
}
template <int kStages>
__device__ __forceinline__ void wait_empty(Ring<kStages>& ring, const RingCursor<kStages>& at) {
    barrier_wait(&ring.empty[at.stage], at.parity ^ 1U);
}
// One arrival a warp.
template <int kStages>
__device__ __forceinline__ void release(Ring<kStages>& ring, int stage) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(&ring.empty[stage]);
}

// For what threads read with ordinary loads: each answers for its own. The warp stays together for the matrix instructions to come.
template <int kStages>
__device__ __forceinline__ void release_read(Ring<kStages>& ring, int stage) {
    __syncwarp();
    barrier_arrive(&ring.empty[stage]);
}

// ---- stationary query rows ----

using QueryPlan = KeyPlan<kKeys, kFold>;

// What the consumers need to know of an item.
struct QueryItem {
    int kv_head;  // -1: no more items
    int token;
    QueryPlan plan;
    RowBounds rows[kUnits * kUnit];
    float2 sums[kUnits * kUnit];  // log-sum-exp in base 2 and delta (dQ only)
};

constexpr int kItemStages = 3;
constexpr int kKeyStages = 2;

// kOperands stationary operands (Q; Q and dO) in kQueryStages buffers.
template <int kD, int kOperands, int kQueryStages>
struct QueryShared {
    unsigned char query[kQueryStages][kOperands][kUnits * kUnitBytes<kD>];
    unsigned char k[kKeyStages][kKeyTileBytes<kD>];
    unsigned char v[kKeyStages][kKeyTileBytes<kD>];
    QueryItem item[kItemStages];
    Ring<kItemStages> items;
    Ring<kQueryStages> queries;
    Ring<kKeyStages> ks, vs;
    std::uint64_t clean[kKeyStages];  // of the ring whose tiles are multiplied by P or dS: V in forward, K in dQ
    static constexpr bool kCleansK = kOperands == 2;
};

template <typename Shared>
__device__ __forceinline__ Shared& aligned_shared(unsigned char* raw) {
    const std::uint32_t misaligned = shared_address(raw) & 1023U;
    return *reinterpret_cast<Shared*>(raw + (misaligned == 0 ? 0 : 1024 - misaligned));
}

template <int kD, int kOperands, int kQueryStages>
__device__ __forceinline__ void init_query_shared(const HopperProblem& p, QueryShared<kD, kOperands, kQueryStages>& shared) {
    if (threadIdx.x == 0) {
        init_ring(shared.items, 32, kConsumerThreads + 1 + 32);  // the loader and the cleaner read them too
        init_ring(shared.queries, 1, kConsumerWarps);
        init_ring(shared.ks, 1, kConsumerWarps + (shared.kCleansK ? 1 : 0));
        init_ring(shared.vs, 1, kConsumerWarps + (shared.kCleansK ? 0 : 1));
        for (std::uint64_t& barrier : shared.clean) barrier_init(&barrier, 1);
        barrier_init_fence();
    }
    clear_tiles(p, &shared.query[0][0][0], sizeof(shared.query));
    __syncthreads();
}

struct QueryMaps {
    const void* query[2];
    KeyMapPointers k, v;
};

// Row r of a unit that starts at `token`.
struct UnitRow {
    int token, head;
    bool inside;
    __device__ __forceinline__ UnitRow(const HopperProblem& p, int first_token, int row, int kv_head) {
        const int offset = row / p.group;
        token = first_token + offset;
        head = kv_head * p.group + row - offset * p.group;
        inside = offset < p.unit_tokens;
    }
    __device__ __forceinline__ bool live(const HopperProblem& p) const { return inside && token < p.mask.live_tokens; }
    __device__ __forceinline__ bool exists(const HopperProblem& p) const { return inside && token < p.tokens; }
    __device__ __forceinline__ long long index(const HopperProblem& p) const { return static_cast<long long>(token) * p.heads + head; }
};

// The planner warp. Longest prefixes first: anchors are sorted, so the last tokens; kv heads in turn.
template <int kD, int kOperands, int kQueryStages>
__device__ __forceinline__ void plan_query_items(const HopperProblem& p, QueryShared<kD, kOperands, kQueryStages>& shared, const float* lse,
                                                 const float* delta) {
    const int lane = threadIdx.x % 32;
    const int tile_tokens = kUnits * p.unit_tokens;
    const int tiles = p.items / p.kv_heads;
    RingCursor<kItemStages> at;
    for (int item = blockIdx.x;; at.advance()) {
        wait_empty(shared.items, at);
        QueryItem& out = shared.item[at.stage];
        if (item >= p.items) {
            if (lane == 0) out.kv_head = -1;
            barrier_arrive(&shared.items.full[at.stage]);
            return;
        }
        const int kv_head = item % p.kv_heads;
        const int token = (tiles - 1 - item / p.kv_heads) * tile_tokens;
        item = next_item(p);
        // All loads before the first store: they wait together.
        constexpr int kLaneRows = kUnits * kUnit / 32;
        RowBounds rows[kLaneRows];
        float2 sums[kLaneRows];
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) {
            const UnitRow row(p, token + 32 * i / kUnit * p.unit_tokens, (32 * i + lane) % kUnit, kv_head);
            const bool live = row.live(p);
            rows[i] = live ? row_bounds(p.mask, row.token) : RowBounds{0, 0, 0, 0};
            if (kOperands == 2)
                sums[i] = live ? make_float2(lse[row.index(p)] * 1.44269504088896341F, delta[row.index(p)]) : make_float2(0.0F, 0.0F);
        }
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) {
            out.rows[32 * i + lane] = rows[i];
            if (kOperands == 2) out.sums[32 * i + lane] = sums[i];
        }
        QueryPlan plan = key_plan<kKeys, kFold>(p.mask, token, token + tile_tokens);
        if (kOperands == 1 && plan.tiles == 0) {  // forward's pipeline has no gaps: dead tokens take a tile that they do not see
            plan.span = {0, 0, 0, 0};
            plan.tiles = 1;
        }
        if (lane == 0) {
            out.kv_head = kv_head;
            out.token = token;
            out.plan = plan;
        }
        barrier_arrive(&shared.items.full[at.stage]);
    }
}

// The loader: one thread.
template <int kD, int kOperands, int kQueryStages>
__device__ __forceinline__ void load_query_items(const HopperProblem& p, QueryShared<kD, kOperands, kQueryStages>& shared,
                                                 const QueryMaps& maps) {
    RingCursor<kItemStages> item_at;
    RingCursor<kQueryStages> query_at;
    RingCursor<kKeyStages> key_at;
    for (;; item_at.advance()) {
        wait_full(shared.items, item_at);
        const QueryItem& item = shared.item[item_at.stage];
        const int kv_head = item.kv_head;
        if (kv_head < 0) return;
        const QueryPlan plan = item.plan;
        const int token = item.token;
        barrier_arrive(&shared.items.empty[item_at.stage]);
        wait_empty(shared.queries, query_at);
        std::uint64_t* barrier = &shared.queries.full[query_at.stage];
        barrier_arrive_expect(barrier, kOperands * kUnits * unit_bytes(p, kD));
        for (int operand = 0; operand < kOperands; ++operand) {
            for (int unit = 0; unit < kUnits; ++unit) {
                load_unit<kD>(shared.query[query_at.stage][operand] + unit * kUnitBytes<kD>, maps.query[operand], barrier,
                              kv_head * p.group, token + unit * p.unit_tokens);
            }
        }
        query_at.advance();
        for (int i = 0; i < plan.tiles; ++i, key_at.advance()) {
            const KeyTile t = plan.tile(i);
            wait_empty(shared.ks, key_at);
            barrier_arrive_expect(&shared.ks.full[key_at.stage], kKeyTileBytes<kD>);
            load_key_tile<kD>(shared.k[key_at.stage], maps.k, &shared.ks.full[key_at.stage], t, kv_head);
            wait_empty(shared.vs, key_at);
            barrier_arrive_expect(&shared.vs.full[key_at.stage], kKeyTileBytes<kD>);
            load_key_tile<kD>(shared.v[key_at.stage], maps.v, &shared.vs.full[key_at.stage], t, kv_head);
        }
    }
}

// The cleaner: 0 * NaN is NaN, so rows of a key tile that no row of the CTA sees must be zero before they are multiplied by zeros. Full tiles
// pass too: a barrier that some phases nobody waits for is an error to synccheck.
template <int kD, int kOperands, int kQueryStages>
__device__ __forceinline__ void clean_key_tiles(const HopperProblem& p, QueryShared<kD, kOperands, kQueryStages>& shared) {
    const int lane = threadIdx.x % 32;
    auto& ring = shared.kCleansK ? shared.ks : shared.vs;
    RingCursor<kItemStages> item_at;
    RingCursor<kKeyStages> at;
    for (;; item_at.advance()) {
        wait_full(shared.items, item_at);
        const QueryItem& item = shared.item[item_at.stage];
        if (item.kv_head < 0) return;
        const QueryPlan plan = item.plan;
        release_read(shared.items, item_at.stage);
        for (int i = 0; i < plan.tiles; ++i, at.advance()) {
            const KeyTile t = plan.tile(i);
            const bool full = plan.full(t);
            std::uint32_t unseen = 0;  // bit j: row 32 j + lane; known before the tile is there
            if (!full) {
#pragma unroll
                for (int j = 0; j < kKeys / 32; ++j) unseen |= plan.seen(p.mask, t, 32 * j + lane) ? 0U : 1U << j;
            }
            wait_full(ring, at);
            if (!full) {
                unsigned char* tile = shared.kCleansK ? shared.k[at.stage] : shared.v[at.stage];
#pragma unroll 1
                for (int j = 0; j < kKeys / 32; ++j) {
                    if ((unseen & (1U << j)) == 0) continue;
#pragma unroll 4
                    for (int step = 0; step < kD / 8; ++step) {  // lanes start apart, so that they do not share banks
                        const int c = (step + lane) % (kD / 8);
                        unsigned char* chunk = tile + c / 8 * kKeyPanelBytes + (32 * j + lane) * kPanelRowBytes + c % 8 * 16;
                        *reinterpret_cast<uint4*>(chunk) = make_uint4(0, 0, 0, 0);
                    }
                }
                fence_async_proxy();
                __syncwarp();
            }
            if (lane == 0) {
                barrier_arrive(&shared.clean[at.stage]);
                barrier_arrive(&ring.empty[at.stage]);
            }
        }
    }
}

template <int kD, int kOperands, int kQueryStages>
__device__ __forceinline__ void produce_query_items(const HopperProblem& p, QueryShared<kD, kOperands, kQueryStages>& shared,
                                                    const QueryMaps& maps, const float* lse, const float* delta) {
    const int warp = threadIdx.x / 32;
    if (warp == kPlannerWarp) plan_query_items(p, shared, lse, delta);
    if (warp == kLoaderWarp && threadIdx.x % 32 == 0) load_query_items(p, shared, maps);
    if (warp == kCleanerWarp) clean_key_tiles(p, shared);
}

}  // namespace dflash::cuda::device
