// SPDX-License-Identifier: MIT
// Host side of the Hopper attention kernels: tensor maps, the work counter and the persistent grid.
#pragma once

#include <cuda.h>

#include "kernels/cuda/anchor_attention_args.h"
#include "kernels/cuda/launch_check.h"

namespace dflash::cuda::hopper {

// A map over bf16 (rows, heads, head_dim) that copies boxes of (box_rows, box_heads, 64) in swizzled panels. Elements outside the tensor
// read as zero. An empty tensor is mapped over `stand_in`, which must then never be read.
CUtensorMap make_map(const Bf16Bits* data, int rows, int heads, int head_dim, int box_rows, int box_heads, const Bf16Bits* stand_in);

// A zeroed counter in device memory; concurrent launches get different ones.
unsigned* work_counter();
int multiprocessors();

}  // namespace dflash::cuda::hopper
