// SPDX-License-Identifier: MIT
#include "tensor/cuda_runtime.h"

#include <cuda_runtime.h>

#include "base/byte_size.h"
#include "base/error.h"

namespace dflash::cuda {

namespace {

void check(cudaError_t status, const char* call) {
    if (status == cudaSuccess) return;
    cudaGetLastError();  // an error that is not sticky is forgotten
    throw_failed("CUDA: {}: {} ({}): see `dflash doctor`, or use --device cpu", call, cudaGetErrorString(status), cudaGetErrorName(status));
}

cudaStream_t stream_of(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

bool is_built() { return true; }

int device_count() {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    cudaGetLastError();
    return status == cudaSuccess ? count : 0;
}

DeviceProperties device_properties(Device device) {
    cudaDeviceProp p{};
    check(cudaGetDeviceProperties(&p, device.index), "cudaGetDeviceProperties");
    return {p.name, p.major, p.minor, p.multiProcessorCount, p.totalGlobalMem};
}

void select_device(Device device) { check(cudaSetDevice(device.index), "cudaSetDevice"); }

std::size_t free_memory_bytes(Device device) {
    select_device(device);
    std::size_t free = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return free;
}

void* allocate(Device device, std::size_t bytes) {
    select_device(device);
    void* memory = nullptr;
    if (cudaMalloc(&memory, bytes) == cudaSuccess) return memory;
    cudaGetLastError();
    throw_failed("cannot allocate {} on GPU {}, where {} are free: end what else runs there, or lower --token-budget or --max-anchors",
                 format_bytes(bytes), device.index, format_bytes(free_memory_bytes(device)));
}

void deallocate(Device device, void* memory) noexcept {
    cudaSetDevice(device.index);
    cudaFree(memory);
}

void* allocate_pinned(std::size_t bytes) {
    void* memory = nullptr;
    if (cudaMallocHost(&memory, bytes) == cudaSuccess) return memory;
    cudaGetLastError();
    throw_failed("cannot pin {} of host memory: free host memory, or raise the limit of locked memory (ulimit -l)", format_bytes(bytes));
}

void deallocate_pinned(void* memory) noexcept { cudaFreeHost(memory); }

void* create_stream(Device device) {
    select_device(device);
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    return stream;
}

void destroy_stream(void* stream) noexcept { cudaStreamDestroy(static_cast<cudaStream_t>(stream)); }

void copy(const Stream& stream, void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)), "cudaMemcpyAsync");
}

void fill(const Stream& stream, void* memory, unsigned char byte, std::size_t bytes) {
    if (bytes > 0) check(cudaMemsetAsync(memory, byte, bytes, stream_of(stream)), "cudaMemsetAsync");
}

void synchronize(const Stream& stream) { check(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize"); }

void begin_recording(const Stream& stream) {
    check(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

void* end_recording(const Stream& stream) {
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_of(stream), &graph), "cudaStreamEndCapture");
    cudaGraphExec_t executable = nullptr;
    const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "cudaGraphInstantiate");
    return executable;
}

void abandon_recording(const Stream& stream) noexcept {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream_of(stream), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
}

void launch_graph(const Stream& stream, void* graph) {
    check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)), "cudaGraphLaunch");
}

void destroy_graph(void* graph) noexcept { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

void* create_event(Device device) {
    select_device(device);
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "cudaEventCreate");
    return event;
}

void destroy_event(void* event) noexcept { cudaEventDestroy(event_of(event)); }

void record(const Stream& stream, void* event) { check(cudaEventRecord(event_of(event), stream_of(stream)), "cudaEventRecord"); }

bool reached(void* event) {
    const cudaError_t status = cudaEventQuery(event_of(event));
    if (status == cudaErrorNotReady) {
        cudaGetLastError();
        return false;
    }
    check(status, "cudaEventQuery");
    return true;
}

void wait(void* event) { check(cudaEventSynchronize(event_of(event)), "cudaEventSynchronize"); }

void wait_on_stream(const Stream& stream, void* event) {
    check(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0), "cudaStreamWaitEvent");
}

double milliseconds_between(void* first, void* second) {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, event_of(first), event_of(second)), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds);
}

}  // namespace dflash::cuda
