// SPDX-License-Identifier: MIT
// The seam between an op and its back ends: every op has a launcher of the same name in cpu:: and in cuda::, listed once here.
// <op>.cpp checks the arguments and calls one of the two; no_cuda.cpp makes the cuda:: ones of a build without CUDA throw.
#pragma once

#include <memory>
#include <vector>

#include "kernels/linear.h"
#include "kernels/matmul_library.h"

// result, name, arguments
#define DFLASH_LAUNCHERS(LAUNCHER)                                          \
    LAUNCHER(std::unique_ptr<MatmulLibrary>, make_matmul_library, (Device)) \
    LAUNCHER(std::size_t, linear_workspace_bytes, (Device, const std::vector<LinearShape>&))

namespace dflash {

#define DFLASH_DECLARE_LAUNCHER(result, name, arguments) result name arguments;
namespace cpu {
DFLASH_LAUNCHERS(DFLASH_DECLARE_LAUNCHER)
}
namespace cuda {
DFLASH_LAUNCHERS(DFLASH_DECLARE_LAUNCHER)
// The stream that a Context on a CUDA device orders its work on.
void* create_stream(Device device);
void destroy_stream(void* stream) noexcept;
}  // namespace cuda
#undef DFLASH_DECLARE_LAUNCHER

// The launcher for the device's kind.
template <typename Function>
Function* on_device(Device device, Function* cpu_launcher, Function* cuda_launcher) {
    return device.type == DeviceType::kCuda ? cuda_launcher : cpu_launcher;
}

}  // namespace dflash
