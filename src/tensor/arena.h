// SPDX-License-Identifier: MIT
// One allocation per device, of exactly plan.arena_bytes, and the views into it by name.
#pragma once

#include <string>
#include <unordered_map>

#include "tensor/buffer.h"
#include "tensor/plan.h"
#include "tensor/tensor.h"

namespace dflash {

class Arena {
public:
    // Allocates and zero-fills (on the CPU, so that every page is resident before the first step).
    // Throws Error(kFailed) naming the size when the memory is not to be had.
    Arena(Device device, const Plan& plan, HostMemory host_memory = HostMemory::kPageable);
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    // The planned buffer under its full shape. Throws Error(kFailed) for a name that was not planned.
    Tensor tensor(const std::string& name) const;
    bool has(const std::string& name) const { return views_.count(name) != 0; }
    Device device() const { return memory_.tensor().device; }
    std::size_t bytes() const { return memory_.tensor().bytes(); }

private:
    DeviceBuffer memory_;
    std::unordered_map<std::string, Tensor> views_;
};

}  // namespace dflash
