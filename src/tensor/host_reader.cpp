// SPDX-License-Identifier: MIT
#include "tensor/host_reader.h"

#include <algorithm>

#include "base/bf16.h"
#include "tensor/cuda_runtime.h"

namespace dflash {

HostReader::HostReader(const Stream& stream) : stream_(stream) {
    if (stream.device.type == DeviceType::kCpu) return;
    memory_ = DeviceBuffer(Device{}, DType::kU8, {static_cast<std::int64_t>(kHostReaderBytes)}, HostMemory::kPinned);
}

// Elements begin .. begin + count - 1, copied to byte `at` of the host memory; not there before the stream has been waited for.
Tensor HostReader::fetch(const Tensor& tensor, std::int64_t begin, std::int64_t count, std::size_t at) {
    const Tensor part = tensor.view({tensor.elements()}).slice_rows(begin, count);
    const Tensor host{memory_.tensor().ptr<char>() + at, tensor.dtype, {count}, Device{}};
    cuda::copy(stream_, host.data, part.data, part.bytes());
    return host;
}

void HostReader::read(const Tensor& tensor, const Visit& visit) {
    if (tensor.device.type == DeviceType::kCpu) return visit(tensor.view({tensor.elements()}));
    const auto most = static_cast<std::int64_t>(kHostReaderBytes / dtype_bytes(tensor.dtype));
    for (std::int64_t begin = 0; begin < tensor.elements(); begin += most) {
        const Tensor part = fetch(tensor, begin, std::min(most, tensor.elements() - begin), 0);
        cuda::synchronize(stream_);
        visit(part);
    }
}

void HostReader::read_master(const Tensor& weight, const Tensor& remainder, const Visit& visit) {
    if (!remainder.defined()) return read(weight, visit);
    constexpr std::int64_t kMost = kHostReaderBytes / 8;  // joined 4 bytes, and 2 of each part
    for (std::int64_t begin = 0; begin < weight.elements(); begin += kMost) {
        const std::int64_t count = std::min(kMost, weight.elements() - begin);
        const Tensor high = fetch(weight, begin, count, kHostReaderBytes / 2);
        const Tensor low = fetch(remainder, begin, count, kHostReaderBytes / 4 * 3);
        cuda::synchronize(stream_);
        const Tensor joined{memory_.tensor().data, DType::kF32, {count}, Device{}};
        const auto* h = high.ptr<std::uint16_t>();
        const auto* l = low.ptr<std::uint16_t>();
        for (std::int64_t i = 0; i < count; ++i) joined.f32()[i] = join_float({h[i], l[i]});
        visit(joined);
    }
}

}  // namespace dflash
