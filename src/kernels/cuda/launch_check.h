// SPDX-License-Identifier: MIT
// Every CUDA call and every launch is checked; a failure is an Error with the call's text.
#pragma once

#include <cuda_runtime.h>

#include <string>

namespace dflash::cuda {

void check_cuda(cudaError_t status, const char* what);
[[noreturn]] void throw_cuda(const std::string& message);

}  // namespace dflash::cuda

#define DFLASH_CUDA(call) ::dflash::cuda::check_cuda((call), #call)
#define DFLASH_LAUNCH_CHECK(kernel) ::dflash::cuda::check_cuda(cudaGetLastError(), kernel)
