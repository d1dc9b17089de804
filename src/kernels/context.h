// SPDX-License-Identifier: MIT
// What every op call is given: device, stream, planned scratch memory and the library handles behind it (oneDNN
// primitives on the CPU, cuBLASLt on CUDA). One Context per thread of control; ops on one Context run in call order.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "tensor/buffer.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace dflash {

class MatmulLibrary;  // kernels/matmul_library.h
namespace cuda {
class AttentionChoices;  // kernels/cuda/attention_choice.h
}
class OpProbe;      // kernels/stopwatch.h
class StagingRing;  // kernels/staging.h

constexpr std::size_t kStagingBytes = std::size_t{8} << 20;  // pinned, one ring a CUDA context

class Context {
public:
    explicit Context(Device device = {});
    ~Context();
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    Device device() const { return stream_.device; }
    const Stream& stream() const { return stream_; }

    // Scratch for matrix products and other ops, u8 (bytes), normally an arena buffer of linear_workspace_bytes().
    // Without one the Context grows a private buffer (tests, tools).
    void bind_workspace(const Tensor& workspace) { workspace_ = workspace; }
    // At least `bytes` of scratch, valid until the next op. Throws Error(kFailed) when a bound workspace is too small.
    void* workspace(std::size_t bytes) const;

    // Host values into planned memory, in the order of the ops; the host's memory may be used again at once. On CUDA they pass through a
    // ring of pinned memory (kStagingBytes), so nothing waits unless the ring is full of copies that are still to be made.
    void upload(const void* from, const Tensor& to) const;
    template <typename T>
    void upload(std::span<const T> values, const Tensor& to) const {
        DFLASH_CHECK(values.size_bytes() == to.bytes(), "upload of {} bytes into a tensor of {}", values.size_bytes(), to.bytes());
        upload(static_cast<const void*>(values.data()), to);
    }
    // The tensor's bytes to the host, after all ops before: waits for them.
    void download(const Tensor& from, void* to) const;
    void synchronize() const;

    MatmulLibrary& matmul() const { return *matmul_; }

    // Benches bind one; null otherwise.
    void bind_probe(OpProbe* probe) { probe_ = probe; }
    OpProbe* probe() const { return probe_; }

    // Attention kernels that were chosen for some shapes; null: the defaults. They must outlive the ops.
    void bind_attention(const cuda::AttentionChoices* choices) { attention_ = choices; }
    const cuda::AttentionChoices* attention() const { return attention_; }

private:
    Stream stream_;
    Tensor workspace_;
    mutable DeviceBuffer private_workspace_;
    std::unique_ptr<StagingRing> staging_;  // CUDA only
    std::unique_ptr<MatmulLibrary> matmul_;
    OpProbe* probe_ = nullptr;
    const cuda::AttentionChoices* attention_ = nullptr;
};

// Threads that CPU ops use (OpenMP's count at the call). Results are bit-equal for one count.
int cpu_threads();

}  // namespace dflash
