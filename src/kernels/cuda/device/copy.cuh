// SPDX-License-Identifier: MIT
// Moving tiles between global and shared memory: cp.async (16 bytes a thread, sm_80 and later), and the tensor copy engine with its
// transaction barriers (sm_90). Every function is one instruction or a short fixed sequence.
#pragma once

#include <cstdint>

namespace dflash::cuda::device {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes; zeros are written instead where !valid (the source is not read).
__device__ __forceinline__ void copy_async_16(std::uint32_t destination, const void* source, bool valid) {
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- transaction barriers (sm_90) ----
__device__ __forceinline__ void barrier_init(std::uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_arrive(std::uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void barrier_arrive_expect(std::uint64_t* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "WAIT:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra DONE;\n"
        "bra WAIT;\n"
        "DONE:\n"
        "}\n" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}
// Ordinary shared stores become visible to the tensor cores and the copy engine.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A box of a 3-d tensor map (d, head, row) into shared memory.
__device__ __forceinline__ void copy_box(void* destination, const void* map, std::uint64_t* barrier, int d, int head, int row) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
                     shared_address(destination)),
                 "l"(map), "r"(shared_address(barrier)), "r"(d), "r"(head), "r"(row)
                 : "memory");
}
// The way back: a box from shared memory; elements outside the tensor are not written. store_read_wait returns when the boxes that this
// thread stored have left shared memory.
__device__ __forceinline__ void store_box(const void* source, const void* map, int d, int head, int row) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map), "r"(shared_address(source)),
                 "r"(d), "r"(head), "r"(row)
                 : "memory");
}
__device__ __forceinline__ void store_read_wait() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void prefetch_map(const void* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// ---- named barriers of part of a CTA; 0 is __syncthreads ----
__device__ __forceinline__ void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
__device__ __forceinline__ void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// Registers a thread of this warpgroup may use from here on (sm_90a).
template <int kRegisters>
__device__ __forceinline__ void raise_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void lower_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// A ring of buffers between one producer and its consumers: position n uses stage n % kStages.
template <int kStages>
struct Ring {
    std::uint64_t full[kStages];
    std::uint64_t empty[kStages];
};
template <int kStages>
struct RingCursor {
    int stage = 0;
    std::uint32_t parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1U;
        }
    }
};

}  // namespace dflash::cuda::device
