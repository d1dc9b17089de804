// SPDX-License-Identifier: MIT
// What this machine has and this process holds, from /proc and the control group's limit. Zero where the system does not say.
#pragma once

#include <cstddef>

namespace dflash {

// Memory that a new allocation can get without swapping, within the control group's limit where there is one.
std::size_t host_memory_available_bytes();
// Resident size of this process now, and its largest so far.
std::size_t resident_bytes();
std::size_t resident_peak_bytes();
// The part of the resident size that is pages of files, programs and libraries among them: how many the kernel keeps mapped is up to it.
std::size_t resident_file_bytes();

}  // namespace dflash
