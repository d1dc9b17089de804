// SPDX-License-Identifier: MIT
// From a mapped checkpoint into tensors of a device, converted on the way where the dtypes differ (F32, F16 and BF16 to f32 or bf16). bf16 on
// disk goes to bf16 in device memory as it is. Host memory beside the mapped file is bounded: a pinned ring and one piece for conversions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "tensor/buffer.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace dflash {

class StagingRing;

class TensorLoader {
public:
    explicit TensorLoader(Device device);
    ~TensorLoader();
    TensorLoader(const TensorLoader&) = delete;
    TensorLoader& operator=(const TensorLoader&) = delete;

    // `file` is named where the entry cannot be used (Error kBadInput). The entry's memory may be dropped at once. With a `remainder` (u16) the
    // bf16 destination keeps all 32 bits of the values, as masters do (kernels/adamw.h).
    void load(const SafetensorsEntry& entry, const std::string& file, const Tensor& destination, const Tensor& remainder = {});
    // The same from f32 values in host memory.
    void convert(const float* values, const Tensor& destination, const Tensor& remainder = {});
    // Host values of the destination's own dtype.
    void copy(const void* from, const Tensor& destination);
    // All that was loaded is there.
    void finish();

private:
    Stream stream_;
    std::unique_ptr<StagingRing> ring_;      // CUDA only
    HostBuffer piece_;                       // f32
    std::vector<std::uint16_t> high_, low_;  // of a piece
};

}  // namespace dflash
