// SPDX-License-Identifier: MIT
// What a device's own matrix product reaches, in the dtype that training uses there: the ceiling that a step is measured against.
//   CPU: fp32, 2,048 cubed, the best of a few.
//   CUDA: bf16, 8,192 cubed; cold: 20 launches after 5; sustained: after three seconds of load, when a card has settled at its power limit.
#pragma once

#include "kernels/context.h"

namespace dflash {

struct Ceiling {
    double cold_flops = 0, sustained_flops = 0;  // a second
};
// Takes memory of its own (up to 0.4 GB) and gives it back.
Ceiling measure_ceiling(Device device);

// Repeats work for `milliseconds`, so that what is measured next is measured under load. `work` returns the milliseconds it took.
template <typename Work>
void load_for(double milliseconds, const Work& work) {
    for (double spent = 0; spent < milliseconds;) spent += work();
}
constexpr double kSettleMs = 3000;

}  // namespace dflash
