// SPDX-License-Identifier: MIT
// Which of the compiled vector code paths this processor runs, e.g. "AVX3" (AVX-512), "AVX2", "EMU128" (scalar).
#pragma once

namespace dflash::cpu {

const char* vector_isa();

}  // namespace dflash::cpu
