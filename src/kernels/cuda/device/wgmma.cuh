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

// `leading` is the distance of two panels where columns are summed into (unused along rows), 1,024 that of eight rows.
__device__ __forceinline__ std::uint64_t panel_descriptor(std::uint32_t address, int leading) {
    return static_cast<std::uint64_t>((address & 0x3ffffU) >> 4) | static_cast<std::uint64_t>(leading >> 4) << 16 |
           static_cast<std::uint64_t>(1024 >> 4) << 32 | static_cast<std::uint64_t>(1) << 62;
}

__device__ __forceinline__ void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void multiply_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving uses of these registers across a fence or a wait.
template <int kN>
__device__ __forceinline__ void pin(float (&acc)[kN][4]) {
#pragma unroll
    for (int n = 0; n < kN; ++n) asm volatile("" : "+f"(acc[n][0]), "+f"(acc[n][1]), "+f"(acc[n][2]), "+f"(acc[n][3])::"memory");
}

#define DFLASH_ACC4(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define DFLASH_ACC32(d, n)                                                                                                     \
    DFLASH_ACC4(d, n), DFLASH_ACC4(d, n + 1), DFLASH_ACC4(d, n + 2), DFLASH_ACC4(d, n + 3), DFLASH_ACC4(d, n + 4), DFLASH_ACC4(d, n + 5), \
        DFLASH_ACC4(d, n + 6), DFLASH_ACC4(d, n + 7)
#define DFLASH_LIST32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DFLASH_LIST64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
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
// d (64, 64) += A B over 16 rows of B, A in registers
__device__ __forceinline__ void multiply_registers(float (&d)[8][4], const std::uint32_t (&a)[4], std::uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" DFLASH_LIST32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"
        : DFLASH_ACC32(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// d (64, 128) = or += A B^T over 16 columns, both operands in shared memory
__device__ __forceinline__ void multiply_shared(float (&d)[16][4], std::uint64_t a, std::uint64_t b, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" DFLASH_LIST64 "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
        : DFLASH_ACC32(d, 0), DFLASH_ACC32(d, 8)
        : "l"(a), "l"(b), "r"(accumulate));
}
// d (64, 128) += A B over 16 rows of B, A in registers
__device__ __forceinline__ void multiply_registers(float (&d)[16][4], const std::uint32_t (&a)[4], std::uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" DFLASH_LIST64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"
        : DFLASH_ACC32(d, 0), DFLASH_ACC32(d, 8)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef DFLASH_ACC4
#undef DFLASH_ACC32
#undef DFLASH_LIST32
#undef DFLASH_LIST64

// acc (64, 8 kN) = A B^T over kD columns. `a` and `b` are the addresses of the first panels, which lie a_panel and b_panel bytes apart.
template <int kD, int kN>
__device__ __forceinline__ void issue_rows(float (&acc)[kN][4], std::uint32_t a, int a_panel, std::uint32_t b, int b_panel) {
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
        const int inside = (k % 4) * 32;
        multiply_shared(acc, panel_descriptor(a + (k / 4) * a_panel + inside, 16), panel_descriptor(b + (k / 4) * b_panel + inside, 16),
                        k > 0);
    }
}
// acc (64, kD) += P B over the first 8 kN rows of `b`.
template <int kD, int kN>
__device__ __forceinline__ void issue_columns(float (&acc)[kD / 8][4], const std::uint32_t (&p)[kN][2], std::uint32_t b, int b_panel) {
#pragma unroll
    for (int k = 0; k < kN / 2; ++k) {
        const std::uint32_t a[4] = {p[2 * k][0], p[2 * k][1], p[2 * k + 1][0], p[2 * k + 1][1]};
        multiply_registers(acc, a, panel_descriptor(b + k * 16 * kPanelRowBytes, b_panel));
    }
}

}  // namespace dflash::cuda::device
