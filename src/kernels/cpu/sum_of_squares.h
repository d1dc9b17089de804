// SPDX-License-Identifier: MIT
// Sum of squares over f32 tensors in double, in an order that does not depend on the thread count.
#pragma once

#include <vector>

#include "tensor/tensor.h"

namespace dflash::cpu {

double sum_of_squares(const std::vector<Tensor>& tensors);

}  // namespace dflash::cpu
