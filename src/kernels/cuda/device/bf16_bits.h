// SPDX-License-Identifier: MIT
// bf16 where only its bits are moved: by the matrix kernels and their host code.
#pragma once

#include <cstdint>

namespace dflash::cuda {

using Bf16Bits = std::uint16_t;

}  // namespace dflash::cuda
