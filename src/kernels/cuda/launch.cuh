// SPDX-License-Identifier: MIT
// What the launchers of the row ops share: the stream, typed pointers, grid sizes, and the choice between 16-byte and single-element accesses.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "base/check.h"
#include "kernels/context.h"
#include "kernels/cuda/launch_check.h"
#include "tensor/tensor.h"

namespace dflash::cuda {

inline cudaStream_t stream_of(const Context& context) { return static_cast<cudaStream_t>(context.stream().handle); }

inline __nv_bfloat16* bf16(const Tensor& tensor) { return tensor.defined() ? static_cast<__nv_bfloat16*>(tensor.data) : nullptr; }
inline float* f32_or_null(const Tensor& tensor) { return tensor.defined() ? tensor.f32() : nullptr; }

inline void check_bf16(const char* op, std::initializer_list<const Tensor*> tensors) {
    for (const Tensor* tensor : tensors) {
        if (!tensor->defined() || tensor->dtype == DType::kBF16) continue;
        throw_cuda(std::string(op) + ": a tensor is " + dtype_name(tensor->dtype) + ", expected bf16");
    }
}

constexpr int kVector = 8;  // bf16 elements of a 16-byte access
// Rows of `columns` can be read in vectors: every row starts on 16 bytes.
inline bool in_vectors(std::int64_t columns, std::initializer_list<const Tensor*> tensors) {
    if (columns % kVector != 0) return false;
    for (const Tensor* tensor : tensors) {
        if (reinterpret_cast<std::uintptr_t>(tensor->data) % 16 != 0) return false;
    }
    return true;
}
// launch(integral_constant<int, width>) with width 8 or 1.
template <typename Launch>
void with_width(bool vectors, const Launch& launch) {
    if (vectors) {
        launch(std::integral_constant<int, kVector>{});
    } else {
        launch(std::integral_constant<int, 1>{});
    }
}

// Blocks for `items` items, `per_block` each, walking with a stride beyond `most` blocks.
inline unsigned blocks_for(std::int64_t items, std::int64_t per_block, std::int64_t most = 1 << 16) {
    return static_cast<unsigned>(std::clamp<std::int64_t>((items + per_block - 1) / per_block, 1, most));
}

}  // namespace dflash::cuda
