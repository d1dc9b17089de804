// SPDX-License-Identifier: MIT
// The CUDA services of a build without CUDA: there is no device, and nothing else can be asked for.
#include "base/error.h"
#include "tensor/cuda_runtime.h"

namespace dflash::cuda {

namespace {

[[noreturn]] void no_cuda() {
    throw_failed("this program was built without CUDA; use the CPU (--device cpu) or build with the CUDA toolkit installed");
}

}  // namespace

bool is_built() { return false; }
int device_count() { return 0; }
DeviceProperties device_properties(Device) { no_cuda(); }
void select_device(Device) { no_cuda(); }
std::size_t free_memory_bytes(Device) { no_cuda(); }

void* allocate(Device, std::size_t) { no_cuda(); }
void deallocate(Device, void*) noexcept {}
void* allocate_pinned(std::size_t) { no_cuda(); }
void deallocate_pinned(void*) noexcept {}

void* create_stream(Device) { no_cuda(); }
void destroy_stream(void*) noexcept {}
void copy(const Stream&, void*, const void*, std::size_t) { no_cuda(); }
void fill(const Stream&, void*, unsigned char, std::size_t) { no_cuda(); }
void synchronize(const Stream&) { no_cuda(); }

void begin_recording(const Stream&) { no_cuda(); }
void* end_recording(const Stream&) { no_cuda(); }
void abandon_recording(const Stream&) noexcept {}
void launch_graph(const Stream&, void*) { no_cuda(); }
void destroy_graph(void*) noexcept {}

void* create_event(Device) { no_cuda(); }
void destroy_event(void*) noexcept {}
void record(const Stream&, void*) { no_cuda(); }
bool reached(void*) { no_cuda(); }
void wait(void*) { no_cuda(); }
void wait_on_stream(const Stream&, void*) { no_cuda(); }
double milliseconds_between(void*, void*) { no_cuda(); }

}  // namespace dflash::cuda
