// SPDX-License-Identifier: MIT
#include "kernels/cuda/launch_check.h"

#include "base/error.h"

namespace dflash::cuda {

void check_cuda(cudaError_t status, const char* what) {
    if (status != cudaSuccess) throw_failed("CUDA: {}: {}", what, cudaGetErrorString(status));
}
void throw_cuda(const std::string& message) { throw_failed("CUDA: {}", message); }

}  // namespace dflash::cuda
