// SPDX-License-Identifier: MIT
// Anchor attention with wgmma and the tensor copy engine (sm_90a). The same three kernels as the portable back end:
//   forward   O_i = sum_j softmax(q_i k_j) v_j                        stationary Q, moving K and V
//   query     dQ_i = scale sum_j dS_ij k_j,  dS = P (dO V^T - delta)  stationary Q and dO, moving K and V
//   key       dV_j = sum_i P_ij dO_i,  dK_j = scale sum_i dS_ij q_i   stationary K and V, moving Q and dO
// One producer warp feeds two consumer warpgroups of 64 rows each (device/hopper_pipeline.cuh). P and dS go from accumulators to the next
// product without leaving registers. No float atomics: each output is written by one thread. Bound: tensor cores, then shared-memory reads.
#include <algorithm>

#include "kernels/cuda/device/hopper_pipeline.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/hopper_launch.h"
#include "kernels/cuda/tile_config.h"

namespace dflash::cuda::hopper {

namespace {

using namespace device;  // NOLINT(google-build-using-namespace): the kernels are written in its terms

static_assert(kUnit == kUnitRows && kUnits == kHopperUnits && kKeys == kHopperKeys && kFold == kHopperFold);

struct KeyMaps {
    CUtensorMap wide, context, block;
    __device__ __forceinline__ KeyMapPointers pointers() const { return {&wide, &context, &block}; }
};
struct Maps {
    CUtensorMap q, d_out, out;  // boxes of one unit
    KeyMaps k, v;
};

// ---------------------------------------------------------------- forward

constexpr bool kTakeTurns = true;  // the two units issue their products in turn, so that one's softmax runs under the other's products

constexpr int kForwardQueryStages = 2;
template <int kD>
using ForwardShared = QueryShared<kD, 1, kForwardQueryStages>;

__device__ __forceinline__ SeenBits seen_in_tile(const RowBounds* rows, int row, const KeyTile& t) {
    const RowBounds bounds[2] = {rows[row], rows[row + 8]};
    return seen_by_rows<kKeys / 8>(bounds, t, threadIdx.x % 32);
}

// What a consumer keeps of the item it is at, while the next one's first scores are made.
struct ForwardItem {
    int kv_head, token, tiles, query_stage;
    OnlineSoftmax softmax;
};

template <int kD>
__device__ __forceinline__ void consume_forward(const HopperProblem& p, ForwardShared<kD>& shared, const void* out, float* lse) {
    const int unit = static_cast<int>(uniform(threadIdx.x / 128));
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x % 128 / 32 * 16 + lane / 4;  // of the unit, and row + 8
    const float scale2 = p.scale * kLog2E;
    RingCursor<kItemStages> item_at;
    RingCursor<kForwardQueryStages> query_at;
    RingCursor<kKeyStages> k_at, v_at;
    float o[kD / 8][4], s[kKeys / 8][4], rescale[2];
    std::uint32_t packed[kKeys / 8][2];

    // Of the next key tile, for the queries at query_at.
    const auto issue_scores = [&] {
        const Operand q = operand(shared.query[query_at.stage][0] + unit * kUnitBytes<kD>, 0);
        const Operand k = operand(shared.k[k_at.stage], 0);
        wait_full(shared.ks, k_at);
        if (kTakeTurns) named_sync(kOrderBarrier + unit, kConsumerThreads);
        multiply_fence();
        issue_rows<kD, kUnitPanelBytes, kKeyPanelBytes>(s, q, k);
        multiply_commit();
    };
    const auto pass_turn = [&] {
        if (kTakeTurns) named_arrive(kOrderBarrier + 1 - unit, kConsumerThreads);
    };
    // Of the value tile whose weights are packed, once the cleaner has passed it.
    const auto issue_output = [&](bool accumulate) {
        const Operand v = operand(shared.v[v_at.stage], kKeyPanelBytes);
        wait_full(shared.vs, v_at);
        barrier_wait(&shared.clean[v_at.stage], v_at.parity);
        multiply_fence();
        issue_columns<kD>(o, packed, v, accumulate);
        multiply_commit();
    };
    // Scores of tile i of the item at item_at become weights.
    const auto weigh = [&](int i, OnlineSoftmax& softmax) {
        pin(s);
        release(shared.ks, k_at.stage);
        k_at.advance();
        const QueryItem& item = shared.item[item_at.stage];
        const KeyTile t = item.plan.tile(i);
        if (!item.plan.full(t)) fill_unseen(s, seen_in_tile(item.rows + unit * kUnit, row, t), -__builtin_huge_valf());
        softmax.step(s, scale2, rescale);
    };
    const auto output_done = [&] {
        multiply_wait<0>();
        pin(o);
        pin(s);
        release(shared.vs, v_at.stage);
        v_at.advance();
    };
    const auto store_output = [&](ForwardItem& done) {
        const UnitRow query[2] = {{p, done.token, row, done.kv_head}, {p, done.token, row + 8, done.kv_head}};
        const bool live[2] = {query[0].live(p), query[1].live(p)};
        float inverse[2], row_lse[2];
        done.softmax.finish(scale2, live, inverse, row_lse);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (query[h].exists(p) && lane % 4 == 0) lse[query[h].index(p)] = row_lse[h];
        }
        rescale_rows(o, inverse);
        // Through Q's place, which the unit no longer needs.
        unsigned char* unit_tile = shared.query[done.query_stage][0] + unit * kUnitBytes<kD>;
        named_sync(kUnitBarrier + unit, 128);
        stage_rows<kD>(o, unit_tile, row - lane / 4, live, lane);
        fence_async_proxy();
        named_sync(kUnitBarrier + unit, 128);
        if (threadIdx.x % 128 == 0) {
#pragma unroll
            for (int panel = 0; panel < kD / kPanelColumns; ++panel)
                store_box(unit_tile + panel * kUnitPanelBytes, out, panel * kPanelColumns, done.kv_head * p.group, done.token);
            store_read_wait();
        }
        release(shared.queries, done.query_stage);
    };
    const auto take_item = [&] {
        const QueryItem& item = shared.item[item_at.stage];
        return ForwardItem{item.kv_head, item.token + unit * p.unit_tokens, item.plan.tiles, query_at.stage, {}};
    };

    if (kTakeTurns && unit == 1) named_arrive(kOrderBarrier, kConsumerThreads);  // unit 0 goes first
    wait_full(shared.items, item_at);
    if (shared.item[0].kv_head < 0) return;
    ForwardItem item = take_item();
    wait_full(shared.queries, query_at);
    issue_scores();
    pass_turn();
    multiply_wait<0>();
    weigh(0, item.softmax);
    pack_fragments(s, packed);
    for (;;) {
        // Scores of tile i beside the output of tile i - 1; the softmax of tile i under both.
        for (int i = 1; i < item.tiles; ++i) {
            issue_scores();
            issue_output(i > 1);
            pass_turn();
            multiply_wait<1>();
            weigh(i, item.softmax);
            output_done();
            pack_fragments(s, packed);
            rescale_changed_rows(o, rescale);
        }
        release_read(shared.items, item_at.stage);
        item_at.advance();
        wait_full(shared.items, item_at);
        ForwardItem next = take_item();
        if (next.kv_head < 0) break;
        // The same across items: the next one's first scores beside the last output.
        query_at.advance();
        next.query_stage = query_at.stage;
        wait_full(shared.queries, query_at);
        issue_scores();
        issue_output(item.tiles > 1);
        pass_turn();
        multiply_wait<1>();
        weigh(0, next.softmax);
        output_done();
        store_output(item);
        pack_fragments(s, packed);
        item = next;
    }
    issue_output(item.tiles > 1);
    output_done();
    store_output(item);
}

template <int kD>
__global__ void __launch_bounds__(kHopperThreads, 1)
    forward_kernel(const __grid_constant__ Maps maps, const __grid_constant__ HopperProblem p, float* lse) {
    extern __shared__ unsigned char raw[];
    auto& shared = aligned_shared<ForwardShared<kD>>(raw);
    init_query_shared<kD>(p, shared);
    if (threadIdx.x >= kConsumerThreads) {
        lower_registers<kProducerRegisters>();
        produce_query_items<kD>(p, shared, {{&maps.q, nullptr}, maps.k.pointers(), maps.v.pointers()}, nullptr, nullptr);
    } else {
        raise_registers<kConsumerRegisters>();
        consume_forward<kD>(p, shared, &maps.out, lse);
    }
}

// ---------------------------------------------------------------- dQ

template <int kD>
using BackwardQueryShared = QueryShared<kD, 2, 1>;

template <int kD>
__device__ __forceinline__ void consume_query(const HopperProblem& p, BackwardQueryShared<kD>& shared, Bf16Bits* d_q) {
    const int unit = static_cast<int>(uniform(threadIdx.x / 128));
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    const float scale2 = p.scale * kLog2E;
    RingCursor<kItemStages> item_at;
    RingCursor<1> query_at;
    RingCursor<kKeyStages> k_at, v_at;
    for (;; item_at.advance()) {
        wait_full(shared.items, item_at);
        const QueryItem& item = shared.item[item_at.stage];
        const int kv_head = item.kv_head;
        if (kv_head < 0) return;
        const QueryPlan& plan = item.plan;
        const int token = item.token + unit * p.unit_tokens;
        const RowBounds* rows = item.rows + unit * kUnit;
        const float2 sums[2] = {item.sums[unit * kUnit + row], item.sums[unit * kUnit + row + 8]};
        float dq[kD / 8][4];
        wait_full(shared.queries, query_at);
        if (plan.tiles == 0) release(shared.queries, query_at.stage);
        if (plan.tiles > 0) {
            const Operand q = operand(shared.query[query_at.stage][0] + unit * kUnitBytes<kD>, 0);
            const Operand grad = operand(shared.query[query_at.stage][1] + unit * kUnitBytes<kD>, 0);
            float s[kKeys / 8][4], dp[kKeys / 8][4];
            std::uint32_t packed[kKeys / 8][2];
            const auto issue_scores = [&] {
                const Operand k = operand(shared.k[k_at.stage], 0);
                wait_full(shared.ks, k_at);
                barrier_wait(&shared.clean[k_at.stage], k_at.parity);
                multiply_fence();
                issue_rows<kD, kUnitPanelBytes, kKeyPanelBytes>(s, q, k);
                multiply_commit();
            };
            const auto issue_weight_gradients = [&] {
                const Operand v = operand(shared.v[v_at.stage], 0);
                wait_full(shared.vs, v_at);
                multiply_fence();
                issue_rows<kD, kUnitPanelBytes, kKeyPanelBytes>(dp, grad, v);
                multiply_commit();
            };
            const auto issue_query_gradients = [&](int stage, bool accumulate) {
                const Operand k = operand(shared.k[stage], kKeyPanelBytes);
                multiply_fence();
                issue_columns<kD>(dq, packed, k, accumulate);
                multiply_commit();
            };
            // The scores of tile i and the gradients of their weights, both on their way, become packed gradients of the scores.
            const auto differentiate = [&](int i) {
                const KeyTile t = plan.tile(i);
                const bool full = plan.full(t);
                multiply_wait<1>();
                pin(s);
                SeenBits seen{};
                if (!full) {
                    seen = seen_in_tile(rows, row, t);
                    fill_unseen(s, seen, -__builtin_huge_valf());
                }
#pragma unroll
                for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) s[n][e] = exp2_fast(fmaf(s[n][e], scale2, -sums[e / 2].x));
                }
                multiply_wait<0>();
                pin(dp);
                pin(s);
                release(shared.vs, v_at.stage);
                v_at.advance();
                if (!full) fill_unseen(dp, seen, 0.0F);
#pragma unroll
                for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) s[n][e] *= dp[n][e] - sums[e / 2].y;
                }
                pack_fragments(s, packed);
            };

            issue_scores();
            issue_weight_gradients();
            differentiate(0);
            // The scores of tile i follow dQ of tile i - 1 without a gap.
            for (int i = 1; i < plan.tiles; ++i) {
                const int done = k_at.stage;
                k_at.advance();
                pin(dq);
                issue_query_gradients(done, i > 1);
                issue_scores();
                multiply_wait<1>();
                pin(dq);
                release(shared.ks, done);
                issue_weight_gradients();
                differentiate(i);
            }
            release(shared.queries, query_at.stage);
            pin(dq);
            issue_query_gradients(k_at.stage, plan.tiles > 1);
            multiply_wait<0>();
            pin(dq);
            release(shared.ks, k_at.stage);
            k_at.advance();
        }
        query_at.advance();
        release_read(shared.items, item_at.stage);

        const UnitRow query[2] = {{p, token, row, kv_head}, {p, token, row + 8, kv_head}};
        Bf16Bits* destination[2];
        float factor[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            destination[h] = query[h].exists(p) ? d_q + query[h].index(p) * p.head_dim : nullptr;
            factor[h] = p.scale;
        }
        rescale_rows(dq, factor);
        store_rows(dq, destination, {query[0].live(p), query[1].live(p)}, p.head_dim, lane);
    }
}

template <int kD>
__global__ void __launch_bounds__(kHopperThreads, 1)
    query_kernel(const __grid_constant__ Maps maps, const __grid_constant__ HopperProblem p, const float* lse, const float* delta,
                 Bf16Bits* d_q) {
    extern __shared__ unsigned char raw[];
    auto& shared = aligned_shared<BackwardQueryShared<kD>>(raw);
    init_query_shared<kD>(p, shared);
    if (threadIdx.x >= kConsumerThreads) {
        lower_registers<kProducerRegisters>();
        produce_query_items<kD>(p, shared, {{&maps.q, &maps.d_out}, maps.k.pointers(), maps.v.pointers()}, lse, delta);
    } else {
        raise_registers<kConsumerRegisters>();
        consume_query<kD>(p, shared, d_q);
    }
}

// ---------------------------------------------------------------- dK, dV

constexpr int kPairStages = 2;    // K, V of an item
constexpr int kMovingStages = 2;  // Q, dO of a unit
constexpr int kColumnStages = 4;
constexpr int kOrderedTiles = 1024;  // context tiles that are worked on longest first; beyond, in their own order
constexpr int kKeyProducerRegisters = 24;
constexpr int kKeyConsumerRegisters = 240;  // dK, dV, scores and their gradients leave no room

struct KeyItem {
    int kv_head;                      // -1: no more items
    int key;                          // first row
    int own;                          // block keys, not context rows
    int unit;                         // first unit that the item reads
    int units;                        // how many
    int first[kUnits], last[kUnits];  // those that each half of the keys is seen by, [first, last)
};

// What the consumers need to know of a unit's rows, the columns of their products.
struct alignas(16) UnitColumns {
    int2 bounds[kUnit];  // keys that each sees
    float lse2[kUnit];   // log-sum-exp in base 2
    float delta[kUnit];
    int2 full[2];  // keys that all of the first and of the second half see
    __device__ __forceinline__ bool covers(int begin, int end) const {
        const int4 f = *reinterpret_cast<const int4*>(full);
        return max(f.x, f.z) <= begin && min(f.y, f.w) >= end;
    }
};

template <int kD>
struct KeyShared {
    unsigned char pair[kPairStages][2][kKeyTileBytes<kD>];
    unsigned char moving[kMovingStages][2][kUnitBytes<kD>];
    UnitColumns columns[kColumnStages];
    KeyItem item[kItemStages];
    Ring<kItemStages> items;
    Ring<kPairStages> pairs;
    Ring<kMovingStages> units;
    Ring<kColumnStages> column_ring;
    std::uint16_t length[kOrderedTiles], order[kOrderedTiles];
};

struct KeyGradients {
    Bf16Bits *d_k_context, *d_v_context, *d_k_block, *d_v_block;
};

struct UnitRange {
    int first = kNoRow, last = 0;  // [first, last)
    __device__ __forceinline__ void add(int unit) {
        first = min(first, unit);
        last = max(last, unit + 1);
    }
};

// Units that see something of each half of the key tile at `key`; found by the whole warp.
__device__ __forceinline__ void units_of_context(const HopperProblem& p, int key, UnitRange (&halves)[kUnits]) {
    const int units = (p.mask.live_tokens + p.unit_tokens - 1) / p.unit_tokens;
#pragma unroll 4
    for (int unit = threadIdx.x % 32; unit < units; unit += 32) {
        const ContextSpan span = token_span(p.mask, unit * p.unit_tokens, (unit + 1) * p.unit_tokens);
#pragma unroll
        for (int h = 0; h < kUnits; ++h) {
            if (span.touches(key + h * kUnit, key + (h + 1) * kUnit)) halves[h].add(unit);
        }
    }
#pragma unroll
    for (int h = 0; h < kUnits; ++h) {
        halves[h].first = __reduce_min_sync(0xffffffffU, halves[h].first);
        halves[h].last = __reduce_max_sync(0xffffffffU, halves[h].last);
    }
}
__device__ __forceinline__ void units_of_block_keys(const HopperProblem& p, int key, UnitRange (&halves)[kUnits]) {
    const int block = p.mask.block_size;
#pragma unroll
    for (int h = 0; h < kUnits; ++h) {
        const int first = (key + h * kUnit) / block * block;
        const int last = min((key + (h + 1) * kUnit + block - 1) / block * block, p.mask.live_tokens);
        if (first < last) halves[h] = {first / p.unit_tokens, (last + p.unit_tokens - 1) / p.unit_tokens};
    }
}

// The first of [0, count) that holds, if those that do come last; some index otherwise.
template <typename Predicate>
__device__ __forceinline__ int first_that(int count, Predicate holds) {
    int low = 0;
    while (low < count) {
        const int middle = (low + count) / 2;
        if (holds(middle)) {
            count = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

// Sorts the context tiles by the number of blocks that read them, longest first. Found by bisection, as if anchors were sorted: where they
// are not, the order is another one, the same in every CTA, and only speed is lost.
template <int kD>
__device__ __forceinline__ void order_context_tiles(const HopperProblem& p, KeyShared<kD>& shared, int tiles) {
    const int blocks = p.mask.live_tokens / p.mask.block_size;
    for (int tile = threadIdx.x % 32; tile < tiles; tile += 32) {
        const int begin = tile * kKeys, end = begin + kKeys;
        const int first = first_that(blocks, [&](int b) { return p.mask.anchor[b] > begin; });
        const int last = first_that(blocks, [&](int b) { return block_span(p.mask, b).lo >= end; });
        shared.length[tile] = static_cast<std::uint16_t>(min(max(last - first, 0), 0xffff));
    }
    __syncwarp();
    for (int tile = threadIdx.x % 32; tile < tiles; tile += 32) {
        const int length = shared.length[tile];
        int rank = 0;
        for (int other = 0; other < tiles; ++other) {
            const int theirs = shared.length[other];
            rank += theirs > length || (theirs == length && other < tile) ? 1 : 0;
        }
        shared.order[rank] = static_cast<std::uint16_t>(tile);
    }
    __syncwarp();
}

template <int kD>
__device__ __forceinline__ void plan_key_items(const HopperProblem& p, KeyShared<kD>& shared) {
    const int lane = threadIdx.x % 32;
    const int context_tiles = (p.context_rows + kKeys - 1) / kKeys;
    const int context_items = context_tiles * p.kv_heads;
    const bool ordered = context_tiles <= kOrderedTiles;
    if (ordered) order_context_tiles(p, shared, context_tiles);
    RingCursor<kItemStages> at;
    for (int item = blockIdx.x;; at.advance()) {
        wait_empty(shared.items, at);
        KeyItem& out = shared.item[at.stage];
        if (item >= p.items) {
            if (lane == 0) out.kv_head = -1;
            barrier_arrive(&shared.items.full[at.stage]);
            return;
        }
        // Block keys are seen by few units: they fill the end.
        const bool own = item >= context_items;
        const int index = own ? item - context_items : item;
        const int tile = index / p.kv_heads;
        const int key = (!own && ordered ? shared.order[tile] : tile) * kKeys;
        item = next_item(p);
        UnitRange halves[kUnits];
        own ? units_of_block_keys(p, key, halves) : units_of_context(p, key, halves);
        const int first = min(halves[0].first, halves[1].first);
        const int last = max(halves[0].last, halves[1].last);
        if (lane == 0) {
            out.kv_head = index % p.kv_heads;
            out.key = key;
            out.own = own ? 1 : 0;
            out.unit = first;
            out.units = max(last - first, 0);
#pragma unroll
            for (int h = 0; h < kUnits; ++h) {
                const bool any = halves[h].last > 0;
                out.first[h] = any ? halves[h].first - first : 0;
                out.last[h] = any ? halves[h].last - first : 0;
            }
        }
        barrier_arrive(&shared.items.full[at.stage]);
    }
}

// One thread.
template <int kD>
__device__ __forceinline__ void load_key_items(const HopperProblem& p, KeyShared<kD>& shared, const Maps& maps) {
    RingCursor<kItemStages> item_at;
    RingCursor<kPairStages> pair_at;
    RingCursor<kMovingStages> unit_at;
    for (;; item_at.advance()) {
        wait_full(shared.items, item_at);
        const KeyItem item = shared.item[item_at.stage];
        if (item.kv_head < 0) return;
        barrier_arrive(&shared.items.empty[item_at.stage]);
        if (item.units == 0) continue;
        wait_empty(shared.pairs, pair_at);
        std::uint64_t* pair = &shared.pairs.full[pair_at.stage];
        barrier_arrive_expect(pair, 2 * kKeyTileBytes<kD>);
        const KeyTile t = item.own != 0 ? KeyTile{0, 0, item.key} : KeyTile{item.key, kKeys, 0};
        load_key_tile<kD>(shared.pair[pair_at.stage][0], maps.k.pointers(), pair, t, item.kv_head);
        load_key_tile<kD>(shared.pair[pair_at.stage][1], maps.v.pointers(), pair, t, item.kv_head);
        pair_at.advance();
        for (int i = 0; i < item.units; ++i, unit_at.advance()) {
            wait_empty(shared.units, unit_at);
            std::uint64_t* barrier = &shared.units.full[unit_at.stage];
            const int token = (item.unit + i) * p.unit_tokens;
            barrier_arrive_expect(barrier, 2 * unit_bytes(p, kD));
            load_unit<kD>(shared.moving[unit_at.stage][0], &maps.q, barrier, item.kv_head * p.group, token);
            load_unit<kD>(shared.moving[unit_at.stage][1], &maps.d_out, barrier, item.kv_head * p.group, token);
        }
    }
}

// One query row as a column.
struct Column {
    int2 keys;  // that it sees
    float lse2, delta;
    bool live;
    Column() = default;
    __device__ __forceinline__ Column(const HopperProblem& p, int token, int c, const KeyItem& item, const float* lse, const float* sums) {
        const UnitRow row(p, token, c, item.kv_head);
        live = row.live(p);
        const RowBounds b = live ? row_bounds(p.mask, row.token) : RowBounds{0, 0, 0, 0};
        keys = item.own != 0 ? make_int2(b.own_lo, b.own_hi) : make_int2(b.lo, b.hi);
        lse2 = live ? lse[row.index(p)] * kLog2E : 0.0F;
        delta = live ? sums[row.index(p)] : 0.0F;
    }
};

// The two columns warps: each lane one query row of every unit. The loads of the next unit are under way while a unit waits for its place.
template <int kD>
__device__ __forceinline__ void load_columns(const HopperProblem& p, KeyShared<kD>& shared, const float* lse, const float* delta) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 - kColumnsWarp;
    const int c = 32 * warp + lane;
    RingCursor<kItemStages> item_at;
    RingCursor<kColumnStages> at;
    for (;; item_at.advance()) {
        wait_full(shared.items, item_at);
        const KeyItem& item = shared.item[item_at.stage];
        if (item.kv_head < 0) return;
        const int units = item.units;
        int token = item.unit * p.unit_tokens;
        Column next{};
        if (units > 0) next = Column(p, token, c, item, lse, delta);
        for (int i = 0; i < units; ++i, at.advance()) {
            const Column column = next;
            token += p.unit_tokens;
            if (i + 1 < units) next = Column(p, token, c, item, lse, delta);
            wait_empty(shared.column_ring, at);
            UnitColumns& columns = shared.columns[at.stage];
            columns.bounds[c] = column.keys;
            columns.lse2[c] = column.lse2;
            columns.delta[c] = column.delta;
            const int full_lo = __reduce_max_sync(0xffffffffU, column.live ? column.keys.x : 0);
            const int full_hi = __reduce_min_sync(0xffffffffU, column.live ? column.keys.y : kNoRow);
            if (lane == 0) columns.full[warp] = make_int2(full_lo, full_hi);
            barrier_arrive(&shared.column_ring.full[at.stage]);
        }
        release_read(shared.items, item_at.stage);
    }
}

template <int kD>
__device__ __forceinline__ void produce_key_items(const HopperProblem& p, KeyShared<kD>& shared, const Maps& maps, const float* lse,
                                                  const float* delta) {
    const int warp = threadIdx.x / 32;
    if (warp == kPlannerWarp) plan_key_items(p, shared);
    if (warp == kLoaderWarp && threadIdx.x % 32 == 0) load_key_items(p, shared, maps);
    if (warp >= kColumnsWarp) load_columns(p, shared, lse, delta);
}

template <int kD>
__device__ __forceinline__ void consume_key(const HopperProblem& p, KeyShared<kD>& shared, const KeyGradients& gradients) {
    const int half = static_cast<int>(uniform(threadIdx.x / 128));
    const int lane = threadIdx.x % 32;
    const int row = half * kUnit + threadIdx.x % 128 / 32 * 16 + lane / 4;  // of the key tile, and row + 8
    const float scale2 = p.scale * kLog2E;
    RingCursor<kItemStages> item_at;
    RingCursor<kPairStages> pair_at;
    RingCursor<kMovingStages> unit_at;
    RingCursor<kColumnStages> column_at;
    for (;; item_at.advance()) {
        wait_full(shared.items, item_at);
        const KeyItem& item = shared.item[item_at.stage];
        if (item.kv_head < 0) return;
        const int key = item.key + row;
        const int half_begin = item.key + half * kUnit;
        const int first = item.first[half];
        const int last = item.last[half];
        float dk[kD / 8][4], dv[kD / 8][4];
        const auto skip = [&](int count) {
            for (int i = 0; i < count; ++i, unit_at.advance(), column_at.advance()) {
                wait_full(shared.units, unit_at);
                release(shared.units, unit_at.stage);
                wait_full(shared.column_ring, column_at);
                release_read(shared.column_ring, column_at.stage);
            }
        };
        if (item.units > 0) {
            skip(first);
            wait_full(shared.pairs, pair_at);
            const Operand k = operand(shared.pair[pair_at.stage][0] + half * kUnitPanelBytes, 0);
            const Operand v = operand(shared.pair[pair_at.stage][1] + half * kUnitPanelBytes, 0);
            float s[kUnit / 8][4], dp[kUnit / 8][4];
            std::uint32_t p_packed[kUnit / 8][2], ds_packed[kUnit / 8][2];
            const auto issue_scores = [&] {
                const Operand q = operand(shared.moving[unit_at.stage][0], kUnitPanelBytes);
                wait_full(shared.units, unit_at);
                multiply_fence();
                issue_rows<kD, kKeyPanelBytes, kUnitPanelBytes>(s, k, q);
                multiply_commit();
            };
            const auto issue_weight_gradients = [&] {
                const Operand grad = operand(shared.moving[unit_at.stage][1], kUnitPanelBytes);
                multiply_fence();
                issue_rows<kD, kKeyPanelBytes, kUnitPanelBytes>(dp, v, grad);
                multiply_commit();
            };
            const auto issue_key_gradients = [&](int stage, bool accumulate) {
                const Operand q = operand(shared.moving[stage][0], kUnitPanelBytes);
                const Operand grad = operand(shared.moving[stage][1], kUnitPanelBytes);
                multiply_fence();
                issue_columns<kD>(dv, p_packed, grad, accumulate);
                issue_columns<kD>(dk, ds_packed, q, accumulate);
                multiply_commit();
            };
            // The scores of a unit and the gradients of their weights, both on their way, become packed weights and gradients of the scores.
            const auto differentiate = [&] {
                wait_full(shared.column_ring, column_at);
                const UnitColumns& columns = shared.columns[column_at.stage];
                const bool full = columns.covers(half_begin, half_begin + kUnit);
                float2 lse2[kUnit / 8];  // loaded early: the products keep shared memory busy
#pragma unroll
                for (int n = 0; n < kUnit / 8; ++n) lse2[n] = reinterpret_cast<const float2*>(columns.lse2)[4 * n + lane % 4];
                multiply_wait<1>();
                pin(s);
                SeenBits seen{};
                if (!full) {
                    seen = seen_by_columns<kUnit / 8>(columns.bounds, key, lane);
                    fill_unseen(s, seen, -__builtin_huge_valf());
                }
#pragma unroll
                for (int n = 0; n < kUnit / 8; ++n) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) s[n][e] = exp2_fast(fmaf(s[n][e], scale2, e % 2 == 0 ? -lse2[n].x : -lse2[n].y));
                }
                pack_fragments(s, p_packed);
                multiply_wait<0>();
                pin(dp);
                if (!full) fill_unseen(dp, seen, 0.0F);
#pragma unroll
                for (int n = 0; n < kUnit / 8; ++n) {
                    const float2 delta = reinterpret_cast<const float2*>(columns.delta)[4 * n + lane % 4];
#pragma unroll
                    for (int e = 0; e < 4; ++e) dp[n][e] = s[n][e] * (dp[n][e] - (e % 2 == 0 ? delta.x : delta.y));
                }
                release_read(shared.column_ring, column_at.stage);
                column_at.advance();
                pack_fragments(dp, ds_packed);
            };

            if (first < last) {
                issue_scores();
                issue_weight_gradients();
                differentiate();
                // The scores of unit i follow dV and dK of unit i - 1 without a gap.
                for (int i = first + 1; i < last; ++i) {
                    const int done = unit_at.stage;
                    unit_at.advance();
                    pin(dv);
                    pin(dk);
                    issue_key_gradients(done, i > first + 1);
                    issue_scores();
                    multiply_wait<1>();
                    pin(dv);
                    pin(dk);
                    release(shared.units, done);
                    issue_weight_gradients();
                    differentiate();
                }
            }
            release(shared.pairs, pair_at.stage);
            if (first < last) {
                pin(dv);
                pin(dk);
                issue_key_gradients(unit_at.stage, last > first + 1);
                multiply_wait<0>();
                pin(dv);
                pin(dk);
                release(shared.units, unit_at.stage);
                unit_at.advance();
            }
            pair_at.advance();
            skip(item.units - last);
        }

        const int keys = item.own != 0 ? p.tokens : p.context_rows;
        const float factor[2] = {p.scale, p.scale};
        Bf16Bits *dk_rows[2], *dv_rows[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row_key = key + 8 * h;
            const long long offset = (static_cast<long long>(row_key) * p.kv_heads + item.kv_head) * p.head_dim;
            dk_rows[h] = row_key < keys ? (item.own != 0 ? gradients.d_k_block : gradients.d_k_context) + offset : nullptr;
            dv_rows[h] = row_key < keys ? (item.own != 0 ? gradients.d_v_block : gradients.d_v_context) + offset : nullptr;
        }
        release_read(shared.items, item_at.stage);
        const bool seen = first < last;
        store_rows(dv, dv_rows, {seen, seen}, p.head_dim, lane);
        rescale_rows(dk, factor);
        store_rows(dk, dk_rows, {seen, seen}, p.head_dim, lane);
    }
}

template <int kD>
__global__ void __launch_bounds__(kHopperThreads, 1) key_kernel(const __grid_constant__ Maps maps, const __grid_constant__ HopperProblem p,
                                                                const float* lse, const float* delta, const KeyGradients gradients) {
    extern __shared__ unsigned char raw[];
    auto& shared = aligned_shared<KeyShared<kD>>(raw);
    if (threadIdx.x == 0) {
        init_ring(shared.items, 32, kConsumerThreads + 1 + 64);  // the loader and the columns warps read them too
        init_ring(shared.pairs, 1, kConsumerWarps);
        init_ring(shared.units, 1, kConsumerWarps);
        init_ring(shared.column_ring, 64, kConsumerThreads);
        barrier_init_fence();
    }
    clear_tiles(p, &shared.moving[0][0][0], sizeof(shared.moving));
    __syncthreads();
    if (threadIdx.x >= kConsumerThreads) {
        lower_registers<kKeyProducerRegisters>();
        produce_key_items<kD>(p, shared, maps, lse, delta);
    } else {
        raise_registers<kKeyConsumerRegisters>();
        consume_key<kD>(p, shared, gradients);
    }
}

// ---------------------------------------------------------------- host

HopperProblem make_problem(const AnchorAttentionShape& s, const AnchorAttentionInputs& in, int items) {
    return {{in.begin_row, in.anchor_row, s.block_size, s.live_tokens, s.window, s.causal_block ? 1 : 0},
            s.context_rows,
            s.tokens,
            s.heads,
            s.kv_heads,
            s.group(),
            s.head_dim,
            kUnit / s.group(),
            s.scale,
            work_counter(),
            items};
}

Maps make_maps(const AnchorAttentionShape& s, const AnchorAttentionInputs& in, const Bf16Bits* d_out, const Bf16Bits* out) {
    // Rows of dead blocks are outside the maps and read as zero, whatever they hold.
    const auto query_map = [&](const Bf16Bits* data, int tokens) {
        return make_map(data, tokens, s.heads, s.head_dim, kUnit / s.group(), s.group(), data);
    };
    const auto key_maps = [&](const Bf16Bits* context, const Bf16Bits* block) {
        return KeyMaps{make_map(context, s.context_rows, s.kv_heads, s.head_dim, kKeys, 1, block),
                       make_map(context, s.context_rows, s.kv_heads, s.head_dim, kFold, 1, block),
                       make_map(block, s.live_tokens, s.kv_heads, s.head_dim, kFold, 1, block)};
    };
    return {query_map(in.q, s.live_tokens), query_map(d_out, s.live_tokens), query_map(out, s.tokens), key_maps(in.k_context, in.k_block),
            key_maps(in.v_context, in.v_block)};
}

int divide_up(int a, int b) { return (a + b - 1) / b; }

template <typename Shared, typename... Parameters, typename... Args>
void launch(const char* name, void (*kernel)(Parameters...), int items, int limit, void* stream, const Args&... args) {
    constexpr std::size_t kBytes = sizeof(Shared) + 1024;  // room to align the panels
    static_assert(kBytes <= kSharedBytesSm90);
    if (items == 0) return;
    DFLASH_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes)));
    const int ctas = std::min(items, limit > 0 ? std::min(limit, multiprocessors()) : multiprocessors());
    kernel<<<ctas, kHopperThreads, kBytes, static_cast<cudaStream_t>(stream)>>>(args...);
    DFLASH_LAUNCH_CHECK(name);
}

int query_items(const AnchorAttentionShape& s) { return divide_up(s.tokens, kUnits * (kUnit / s.group())) * s.kv_heads; }
int key_items(const AnchorAttentionShape& s) { return (divide_up(s.context_rows, kKeys) + divide_up(s.tokens, kKeys)) * s.kv_heads; }

template <int kD>
void forward_dim(const AnchorAttentionForwardArgs& a, void* stream) {
    const int items = query_items(a.shape);
    launch<ForwardShared<kD>>("anchor attention forward (Hopper)", forward_kernel<kD>, items, a.shape.multiprocessors, stream,
                              make_maps(a.shape, a.in, a.in.q, a.out), make_problem(a.shape, a.in, items), a.lse);
}

template <int kD>
void backward_dim(const AnchorAttentionBackwardArgs& a, void* stream) {
    const Maps maps = make_maps(a.shape, a.in, a.d_out, a.d_q);
    launch<BackwardQueryShared<kD>>("anchor attention dQ (Hopper)", query_kernel<kD>, query_items(a.shape), a.shape.multiprocessors, stream,
                                    maps, make_problem(a.shape, a.in, query_items(a.shape)), a.lse, a.delta, a.d_q);
    launch<KeyShared<kD>>("anchor attention dK, dV (Hopper)", key_kernel<kD>, key_items(a.shape), a.shape.multiprocessors, stream, maps,
                          make_problem(a.shape, a.in, key_items(a.shape)), a.lse, a.delta,
                          KeyGradients{a.d_k_context, a.d_v_context, a.d_k_block, a.d_v_block});
}

}  // namespace

void forward(const AnchorAttentionForwardArgs& args, void* stream) {
    args.shape.head_dim <= 64 ? forward_dim<64>(args, stream) : forward_dim<128>(args, stream);
}

void backward(const AnchorAttentionBackwardArgs& args, void* stream) {
    anchor_attention_row_sums(args, stream);
    args.shape.head_dim <= 64 ? backward_dim<64>(args, stream) : backward_dim<128>(args, stream);
}

}  // namespace dflash::cuda::hopper
