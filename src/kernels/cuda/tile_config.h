// SPDX-License-Identifier: MIT
// Tile sizes of the attention kernels, one table for both matrix back ends, with the shared memory they take checked against the
// smallest device that runs them.
#pragma once

#include <cstddef>

namespace dflash::cuda {

constexpr std::size_t kSharedBytesPortable = 99 * 1024;  // sm_86, sm_89, sm_120
constexpr std::size_t kSharedBytesSm80 = 163 * 1024;
constexpr std::size_t kSharedBytesSm90 = 227 * 1024;

// Portable kernels: each warp owns 16 rows of the stationary operand; the moving pair (K, V or Q, dO) has `stages` buffers of `width` rows.
struct PortableTile {
    int warps;
    int width;
    int stages;
};
// By AttentionKernel::tile, the default first; the dQ kernel has one.
constexpr PortableTile kPortableForward[] = {{8, 64, 2}, {4, 64, 2}};
constexpr PortableTile kPortableQuery{4, 64, 2};
constexpr PortableTile kPortableKey[] = {{4, 64, 2}, {4, 32, 2}};

// One stationary operand in forward (Q), two in backward (Q and dO, or K and V); the moving ones are always a pair.
constexpr std::size_t portable_bytes(PortableTile tile, int head_dim, int stationary) {
    return static_cast<std::size_t>(2 * head_dim) * static_cast<std::size_t>(stationary * 16 * tile.warps + 2 * tile.stages * tile.width);
}

// Hopper kernels: a unit is the 64 rows of one warpgroup's matrix instruction; a CTA has two units and one producer warp.
constexpr int kUnitRows = 64;
constexpr int kHopperUnits = 2;
constexpr int kHopperKeys = 128;  // width of a key tile
constexpr int kHopperFold = 32;   // block keys that may share the last context tile

}  // namespace dflash::cuda
