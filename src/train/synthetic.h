// SPDX-License-Identifier: MIT
// Random contents for benches: a few dozen random rows, repeated down a tensor of any device. Far quicker than drawing billions of values,
// and the same to everything that is timed.
#pragma once

#include <cstdint>

#include "kernels/context.h"

namespace dflash {

// Rows that can be laid down again and again without the host, where a plan lends their memory to others in between.
class RandomRows {
public:
    // Uniform in -scale .. scale, for tensors like this one: f32 or bf16 (rows, columns).
    RandomRows(const Context& context, const Tensor& like, std::uint64_t seed, double scale);
    void lay(const Context& context, const Tensor& tensor) const;
    std::size_t bytes() const { return rows_.tensor().bytes(); }

private:
    DeviceBuffer rows_;
};
void fill_random(const Context& context, const Tensor& tensor, std::uint64_t seed, double scale);

}  // namespace dflash
