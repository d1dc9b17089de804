// SPDX-License-Identifier: MIT
// What --device means.
#pragma once

#include <string>

#include "tensor/device.h"

namespace dflash {

// "cpu", "cuda" (the first GPU that the process sees: CUDA_VISIBLE_DEVICES chooses) or "auto" (a GPU where this build and machine have one).
// Error(kBadInput) where a GPU is asked for and cannot be had, saying which of the two is missing.
Device choose_device(const std::string& wanted);
// The device of a name without asking whether it is there: what a plan is made for. "auto" counts as "cpu".
Device device_of_name(const std::string& name);
const char* device_type_name(Device device);

}  // namespace dflash
