// SPDX-License-Identifier: MIT
// What a device's library of matrix products offers to linear.cpp: oneDNN in cpu/matmul_library.cpp, cuBLASLt in the CUDA one.
// A Context owns one; it keeps the compiled products.
#pragma once

#include <memory>
#include <vector>

#include "kernels/linear.h"

namespace dflash {

class MatmulLibrary {
public:
    MatmulLibrary() = default;
    MatmulLibrary(const MatmulLibrary&) = delete;
    MatmulLibrary& operator=(const MatmulLibrary&) = delete;
    virtual ~MatmulLibrary() = default;

    virtual void forward(const Context& context, const LinearForwardParams& params) = 0;
    virtual void backward_input(const Context& context, const LinearBackwardInputParams& params) = 0;
    virtual void backward_weight(const Context& context, const LinearBackwardWeightParams& params) = 0;
    virtual void prepare(const std::vector<LinearShape>& shapes) = 0;
};

}  // namespace dflash
