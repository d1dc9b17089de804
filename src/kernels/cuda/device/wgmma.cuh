// SPDX-License-Identifier: MIT
// wgmma m64nNk16 in bf16 with fp32 sums (sm_90a), N = 64 or 128, and the shared-memory descriptors of 128-byte swizzled panels.
//
// A shared tile is a sequence of panels, each `rows` rows of 128 bytes (64 elements), swizzled as the copy engine writes them. The same
// tile serves two ways:
//   rows     acc (64, N) = A B^T: the product runs along a row (d); B's N rows are the tile's rows
//   columns  acc (64, D) += P B: the product runs over the tile's rows; A is packed accumulators in registers
// Every operand that an instruction in flight reads or writes must stay untouched until multiply_wait says so.
#pragma once

#include "mma.cuh"

namespace dflash::cuda::device {

constexpr int kPanelColumns = 64;
constexpr int kPanelRowBytes = 128;

// A shared-memory descriptor is 64 bits, of which only the lower word differs between operands: address / 16, and the distance of two
// panels / 16 (`panel`) where the product runs over the tile's rows. Moving along a tile adds to it. The upper word says that eight rows
// lie 1,024 bytes apart and how panels are swizzled.
using Operand = std::uint32_t;
constexpr std::uint32_t kOperandUpper = (1024 >> 4) | (1U << 30);

// The value of lane 0. What all lanes share anyway, the compiler then keeps in uniform registers, where descriptors must be.
__device__ __forceinline__ std::uint32_t uniform(std::uint32_t x) { return __shfl_sync(0xffffffffU, x, 0); }
__device__ __forceinline__ Operand operand(const void* tile, int panel) {
    return uniform(((shared_address(tile) & 0x3ffffU) >> 4) | static_cast<std::uint32_t>(panel >> 4) << 16);
}
__device__ __forceinline__ std::uint64_t descriptor(Operand lower) { return static_cast<std::uint64_t>(kOperandUpper) << 32 | lower; }

// No memory clobbers here: shared memory that threads read or write is ordered by the rings' barriers, and loads may move ahead of a wait.
__device__ __forceinline__ void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;"); }
__device__ __forceinline__ void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;"); }
template <int kPending>
__device__ __forceinline__ void multiply_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending));
}
// Keeps the compiler from moving uses of these registers across a fence or a wait.
template <int kN>
__device__ __forceinline__ void pin(float (&acc)[kN][4]) {
#pragma unroll
    for (int n = 0; n < kN; ++n) asm volatile("" : "+f"(acc[n][0]), "+f"(acc[n][1]), "+f"(acc[n][2]), "+f"(acc[n][3]));
}

#define DFLASH_ACC4(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define DFLASH_ACC32(d, n)                                                                                                                \
    DFLASH_ACC4(d, n), DFLASH_ACC4(d, n + 1), DFLASH_ACC4(d, n + 2), DFLASH_ACC4(d, n + 3), DFLASH_ACC4(d, n + 4), DFLASH_ACC4(d, n + 5), \
        DFLASH_ACC4(d, n + 6), DFLASH_ACC4(d, n + 7)
#define DFLASH_LIST32                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DFLASH_LIST64                                                                  \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// d (64, 64) = or += A B^T over 16 columns, both operands in shared memory
__device__ __forceinline__ void multiply_shared(float (&d)[8][4], std::uint64_t a, std::uint64_t b, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" DFLASH_LIST32 "}, %32, %33, p, 1, 1, 0, 0;\n}\n"
        : DFLASH_ACC32(d, 0)
        : "l"(a), "l"(b), "r"(accumulate));
}
// d (64, 64) = or += A B over 16 rows of B, A in registers
__device__ __forceinline__ void multiply_registers(float (&d)[8][4], const std::uint32_t (&a)[4], std::uint64_t b, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" DFLASH_LIST32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
        : DFLASH_ACC32(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

// d (64, 128) = or += A B^T over 16 columns, both operands in shared memory
__device__ __forceinline__ void multiply_shared(float (&d)[16][4], std::uint64_t a, std::uint64_t b, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" DFLASH_LIST64 "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
        : DFLASH_ACC32(d, 0), DFLASH_ACC32(d, 8)
        : "l"(a), "l"(b), "r"(accumulate));
}
// d (64, 128) = or += A B over 16 rows of B, A in registers
__device__ __forceinline__ void multiply_registers(float (&d)[16][4], const std::uint32_t (&a)[4], std::uint64_t b, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" DFLASH_LIST64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
        : DFLASH_ACC32(d, 0), DFLASH_ACC32(d, 8)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

#undef DFLASH_ACC4
#undef DFLASH_ACC32
#undef DFLASH_LIST32
#undef DFLASH_LIST64

// acc (64, 8 kN) = A B^T over kD columns; panels of A and B lie kPanelA and kPanelB bytes apart.
template <int kD, int kPanelA, int kPanelB, int kN>
__device__ __forceinline__ void issue_rows(float (&acc)[kN][4], Operand a, Operand b) {
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
        const int inside = k % 4 * 32;
        multiply_shared(acc, descriptor(a + ((k / 4 * kPanelA + inside) >> 4)), descriptor(b + ((k / 4 * kPanelB + inside) >> 4)), k > 0);
    }
}
// acc (64, kD) = or += P B over the first 8 kN rows of B.
template <int kD, int kN>
__device__ __forceinline__ void issue_columns(float (&acc)[kD / 8][4], const std::uint32_t (&p)[kN][2], Operand b, bool accumulate) {
#pragma unroll
    for (int k = 0; k < kN / 2; ++k) {
        const std::uint32_t a[4] = {p[2 * k][0], p[2 * k][1], p[2 * k + 1][0], p[2 * k + 1][1]};
        multiply_registers(acc, a, descriptor(b + ((k * 16 * kPanelRowBytes) >> 4)), k > 0 || accumulate ? 1 : 0);
    }
}

}  // namespace dflash::cuda::device
