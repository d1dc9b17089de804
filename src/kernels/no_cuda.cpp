// SPDX-License-Identifier: MIT
// The CUDA launchers of a build without CUDA.
#include "kernels/backends.h"

namespace dflash::cuda {

namespace {

[[noreturn]] void no_cuda(const char* what) {
    throw_failed("{}: this program was built without CUDA; use the CPU (--device cpu) or build with the CUDA toolkit installed", what);
}

}  // namespace

#define DFLASH_THROWING_LAUNCHER(result, name, arguments) \
    result name arguments { no_cuda(#name); }
DFLASH_LAUNCHERS(DFLASH_THROWING_LAUNCHER)

void* create_stream(Device) { no_cuda("a CUDA device"); }
void destroy_stream(void*) noexcept {}

}  // namespace dflash::cuda
