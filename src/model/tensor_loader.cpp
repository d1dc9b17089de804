// SPDX-License-Identifier: MIT
#include "model/tensor_loader.h"

#include <algorithm>
#include <cstring>

#include "base/bf16.h"
#include "base/check.h"
#include "kernels/staging.h"
#include "tensor/cuda_runtime.h"

namespace dflash {
namespace {

constexpr std::size_t kRingBytes = std::size_t{32} << 20;
constexpr std::int64_t kPieceElements = std::int64_t{1} << 20;

const char* name_on_disk(DType dtype) { return dtype == DType::kF32 ? "F32" : "BF16"; }

SafetensorsEntry piece_of(const SafetensorsEntry& entry, std::int64_t begin, std::int64_t count) {
    SafetensorsEntry piece = entry;
    const std::size_t element_bytes = entry.bytes / static_cast<std::size_t>(std::max<std::int64_t>(1, entry.elements()));
    piece.data = entry.data + static_cast<std::size_t>(begin) * element_bytes;
    piece.bytes = static_cast<std::size_t>(count) * element_bytes;
    piece.shape = {count};
    return piece;
}

Tensor elements_of(const Tensor& tensor, std::int64_t begin, std::int64_t count) {
    return tensor.view({tensor.elements()}).slice_rows(begin, count);
}

}  // namespace

TensorLoader::TensorLoader(Device device) : stream_{device, nullptr} {
    if (device.type == DeviceType::kCuda) ring_ = std::make_unique<StagingRing>(stream_, kRingBytes);
}

TensorLoader::~TensorLoader() = default;

void TensorLoader::copy(const void* from, const Tensor& destination) {
    if (ring_ != nullptr) {
        ring_->copy(destination.data, from, destination.bytes());
    } else {
        std::memcpy(destination.data, from, destination.bytes());
    }
}

void TensorLoader::convert(const float* values, const Tensor& destination, const Tensor& remainder) {
    if (destination.dtype == DType::kF32) return copy(values, destination);
    for (std::int64_t begin = 0; begin < destination.elements(); begin += kPieceElements) {
        const std::int64_t count = std::min(kPieceElements, destination.elements() - begin);
        high_.resize(static_cast<std::size_t>(count));
        low_.resize(static_cast<std::size_t>(count));
        const float* piece = values + begin;
#pragma omp parallel for schedule(static)
        for (std::size_t i = 0; i < high_.size(); ++i) {
            const SplitFloat split = split_float(piece[i]);
            high_[i] = remainder.defined() ? split.high : float_to_bf16(piece[i]);
            low_[i] = split.low;
        }
        copy(high_.data(), elements_of(destination, begin, count));
        if (remainder.defined()) copy(low_.data(), elements_of(remainder, begin, count));
    }
}

void TensorLoader::load(const SafetensorsEntry& entry, const std::string& file, const Tensor& destination, const Tensor& remainder) {
    DFLASH_CHECK(destination.dtype == DType::kF32 || destination.dtype == DType::kBF16, "tensor '{}' is loaded as f32 or bf16, not {}",
                 entry.name, dtype_name(destination.dtype));
    DFLASH_CHECK(destination.elements() == entry.elements(), "tensor '{}' has {} elements, its destination {}", entry.name,
                 entry.elements(), destination.elements());
    DFLASH_CHECK(
        !remainder.defined() ||
            (destination.dtype == DType::kBF16 && remainder.dtype == DType::kU16 && remainder.elements() == destination.elements()),
        "tensor '{}' is {} and cannot have a remainder of {}", entry.name, dtype_name(destination.dtype), dtype_name(remainder.dtype));
    if (entry.dtype == name_on_disk(destination.dtype) && !remainder.defined()) {
        copy(entry.data, destination);
        return;
    }
    if (destination.dtype == DType::kF32 && ring_ == nullptr) {
        copy_entry_to_f32(entry, file, destination);
        return;
    }
    if (!piece_.tensor().defined()) piece_ = HostBuffer(DType::kF32, {kPieceElements});
    for (std::int64_t begin = 0; begin < entry.elements(); begin += kPieceElements) {
        const std::int64_t count = std::min(kPieceElements, entry.elements() - begin);
        const Tensor values = piece_.tensor().slice_rows(0, count);
        copy_entry_to_f32(piece_of(entry, begin, count), file, values);
        convert(values.f32(), elements_of(destination, begin, count),
                remainder.defined() ? elements_of(remainder, begin, count) : Tensor{});
    }
}

void TensorLoader::finish() {
    if (ring_ != nullptr) cuda::synchronize(stream_);
}

}  // namespace dflash
