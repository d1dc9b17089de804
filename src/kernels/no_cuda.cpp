// SPDX-License-Identifier: MIT
// The CUDA launchers that a build lacks: all of them in a build without CUDA, else those of ops that have no CUDA version. The symbols are
// weak, so that a launcher that is there wins.
#include "kernels/backends.h"

namespace dflash::cuda {

namespace {

[[noreturn]] void no_cuda(const char* what) {
    throw_failed("{}: this program has no CUDA version of it; use the CPU (--device cpu), or a build with the CUDA toolkit installed",
                 what);
}

}  // namespace

#define DFLASH_THROWING_LAUNCHER(result, name, arguments) \
    __attribute__((weak)) result name arguments { no_cuda(#name); }
DFLASH_LAUNCHERS(DFLASH_THROWING_LAUNCHER)

}  // namespace dflash::cuda
