// SPDX-License-Identifier: MIT
// What a device's memory has left and what is taken of it, by this process and others.
#pragma once

#include <cstddef>

#include "tensor/device.h"

namespace dflash {

// A GPU's free memory, or what the host has available; 0 where the system does not say.
std::size_t available_memory_bytes(Device device);
// Of a GPU: driver context and other programs included. 0 on the CPU.
std::size_t used_memory_bytes(Device device);

}  // namespace dflash
