// SPDX-License-Identifier: MIT
// The few services of the CUDA runtime that the layers above use: memory, streams, events, copies. cuda_runtime.cpp implements them;
// in a build without CUDA no_cuda_runtime.cpp does, where device_count() is 0 and everything else throws. Every failure is Error(kFailed),
// one line that names the call, the device and a way out.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "tensor/device.h"

namespace dflash::cuda {

// Does this build have CUDA code?
bool is_built();
// GPUs that this process sees; 0 without a driver or in a build without CUDA.
int device_count();

struct DeviceProperties {
    std::string name;
    int compute_major = 0, compute_minor = 0;
    int multiprocessors = 0;
    std::size_t memory_bytes = 0;
};
DeviceProperties device_properties(Device device);
// Makes the device the calling thread's; launches on its streams need that.
void select_device(Device device);
// Bytes free on the device now; makes the context if there is none yet.
std::size_t free_memory_bytes(Device device);

void* allocate(Device device, std::size_t bytes);
void deallocate(Device device, void* memory) noexcept;
// Page-locked host memory, which copies at full speed beside running kernels.
void* allocate_pinned(std::size_t bytes);
void deallocate_pinned(void* memory) noexcept;

void* create_stream(Device device);
void destroy_stream(void* stream) noexcept;
// Ordered on the stream. Either side may be device or (pinned) host memory; from pageable memory the call returns when it has been read.
void copy(const Stream& stream, void* to, const void* from, std::size_t bytes);
void fill(const Stream& stream, void* memory, unsigned char byte, std::size_t bytes);
void synchronize(const Stream& stream);

// Launches recorded once and replayed as one (a CUDA graph). Between begin and end the calling thread's launches on the stream are recorded,
// not run; copies from pageable memory, allocations and waits are not allowed there. end_recording returns the graph; abandon_recording drops it.
void begin_recording(const Stream& stream);
void* end_recording(const Stream& stream);
void abandon_recording(const Stream& stream) noexcept;
void launch_graph(const Stream& stream, void* graph);
void destroy_graph(void* graph) noexcept;

// Marks on a stream: wait for one from the host or from another stream, or take the time between two.
void* create_event(Device device);
void destroy_event(void* event) noexcept;
void record(const Stream& stream, void* event);
bool reached(void* event);
void wait(void* event);                                  // the host waits
void wait_on_stream(const Stream& stream, void* event);  // the stream waits
double milliseconds_between(void* first, void* second);  // both reached

struct DestroyEvent {
    void operator()(void* event) const noexcept { destroy_event(event); }
};
using OwnedEvent = std::unique_ptr<void, DestroyEvent>;

}  // namespace dflash::cuda
