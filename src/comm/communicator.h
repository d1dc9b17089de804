// SPDX-License-Identifier: MIT
// Sums over the ranks of a run. Trainers call it in a fixed tensor order, and every implementation adds in rank order, so that the same
// ranks give the same bits. One rank: nothing to do. MPI and NCCL ranks are further implementations of this interface.
#pragma once

#include <memory>
#include <span>

#include "tensor/tensor.h"

namespace dflash {

class Communicator {
public:
    virtual ~Communicator() = default;
    virtual int rank() const = 0;
    virtual int ranks() const = 0;
    // In place, f32 or f64; every rank ends with the sum.
    virtual void all_reduce_sum(const Tensor& tensor) = 0;
    // The same for host numbers: losses, weights, counts.
    virtual void all_reduce_sum(std::span<double> values) = 0;
};

std::unique_ptr<Communicator> make_single_rank();

}  // namespace dflash
