// SPDX-License-Identifier: MIT
// A non-owning view: pointer, dtype, shape (row-major, contiguous), device. Owners are Arena (planned memory) and
// HostBuffer (tests, loading). Copying a Tensor copies the view, never the data.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/check.h"
#include "tensor/device.h"
#include "tensor/dtype.h"

namespace dflash {

class Shape {
public:
    static constexpr int kMaxRank = 4;
    Shape() = default;
    Shape(std::initializer_list<std::int64_t> dims) : rank_(static_cast<int>(dims.size())) {
        DFLASH_CHECK(rank_ <= kMaxRank, "a shape has at most {} dimensions, not {}", kMaxRank, rank_);
        int i = 0;
        for (const std::int64_t d : dims) {
            DFLASH_CHECK(d >= 0, "negative dimension {}", d);
            dims_[static_cast<std::size_t>(i++)] = d;
        }
    }
    int rank() const { return rank_; }
    std::int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i < 0 ? i + rank_ : i)]; }
    std::int64_t elements() const {
        std::int64_t n = 1;
        for (int i = 0; i < rank_; ++i) n *= dims_[static_cast<std::size_t>(i)];
        return n;
    }
    bool operator==(const Shape&) const = default;
    std::string to_string() const {
        std::string text = "(";
        for (int i = 0; i < rank_; ++i) text += (i ? ", " : "") + std::to_string((*this)[i]);
        return text + ")";
    }

private:
    std::array<std::int64_t, kMaxRank> dims_{};
    int rank_ = 0;
};

struct Tensor {
    void* data = nullptr;
    DType dtype = DType::kF32;
    Shape shape;
    Device device;

    bool defined() const { return data != nullptr; }
    std::int64_t elements() const { return shape.elements(); }
    std::size_t bytes() const { return static_cast<std::size_t>(elements()) * dtype_bytes(dtype); }
    // First dimension, and the product of the others.
    std::int64_t rows() const { return shape.rank() == 0 ? 1 : shape[0]; }
    std::int64_t row_elements() const { return rows() == 0 ? 0 : elements() / rows(); }

    // Typed pointer; the element type must match the dtype's width.
    template <typename T>
    T* ptr() const {
        DFLASH_ASSERT(sizeof(T) == dtype_bytes(dtype), "tensor of {} read as {}-byte elements", dtype_name(dtype), sizeof(T));
        return static_cast<T*>(data);
    }
    float* f32() const {
        DFLASH_CHECK(dtype == DType::kF32, "tensor is {}, expected f32", dtype_name(dtype));
        return static_cast<float*>(data);
    }
    double* f64() const {
        DFLASH_CHECK(dtype == DType::kF64, "tensor is {}, expected f64", dtype_name(dtype));
        return static_cast<double*>(data);
    }
    std::int32_t* i32() const {
        DFLASH_CHECK(dtype == DType::kI32, "tensor is {}, expected i32", dtype_name(dtype));
        return static_cast<std::int32_t*>(data);
    }
    // Rows [begin, begin + count) of the first dimension.
    Tensor slice_rows(std::int64_t begin, std::int64_t count) const {
        DFLASH_CHECK(begin >= 0 && count >= 0 && begin + count <= rows(), "rows {}..{} of a tensor of {} rows", begin, begin + count,
                     rows());
        Tensor part = *this;
        part.data = static_cast<char*>(data) + static_cast<std::size_t>(begin * row_elements()) * dtype_bytes(dtype);
        part.shape = shape.rank() == 1   ? Shape{count}
                     : shape.rank() == 2 ? Shape{count, shape[1]}
                     : shape.rank() == 3 ? Shape{count, shape[1], shape[2]}
                                         : Shape{count, shape[1], shape[2], shape[3]};
        return part;
    }
    // The same memory under another shape; the view may be smaller than the buffer, never larger.
    Tensor view(const Shape& new_shape) const {
        DFLASH_CHECK(new_shape.elements() <= elements(), "view {} of a tensor {}", new_shape.to_string(), shape.to_string());
        Tensor other = *this;
        other.shape = new_shape;
        return other;
    }
};

}  // namespace dflash
