// SPDX-License-Identifier: MIT
// Times the loss alone: weighted rows against a frozen head, forward and gradient, chunk by chunk: gather, product with the head, row kernel,
// product back. Beside it its parts, and what the device's own matrix product sustains in the same run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/device.h"
#include "train/ceiling.h"

namespace dflash {

struct LossBenchShape {
    std::int64_t rows = 8192, hidden = 5120, vocabulary = 248320, chunk = 1024;
};
struct LossBench {
    Device device;
    std::vector<double> loss_ms;                        // one a repeat
    double product_ms = 0, back_ms = 0, kernel_ms = 0;  // medians of one chunk
    double flops = 0;                                   // of both products over all rows
    Ceiling ceiling;
    std::size_t planned_bytes = 0;   // beyond inputs and outputs: logits and hidden rows of a chunk, workspace
    std::size_t measured_bytes = 0;  // the same as the device sees it; 0 on the CPU
    double share_of_ceiling() const;
};
LossBench run_loss_bench(const LossBenchShape& shape, Device device, std::int64_t repeats);

}  // namespace dflash
