// SPDX-License-Identifier: MIT
// What weights, activations, features and their gradients are made of on a device. Small per-row results (rstd, log-sum-exp, losses, loss weights),
// rotary tables, optimizer moments and recurrent states are f32 everywhere; sums over a whole step are f64.
#pragma once

#include "tensor/device.h"
#include "tensor/dtype.h"

namespace dflash {

constexpr DType working_dtype(Device device) { return device.type == DeviceType::kCuda ? DType::kBF16 : DType::kF32; }

}  // namespace dflash
