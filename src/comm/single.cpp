// SPDX-License-Identifier: MIT
#include "comm/communicator.h"

namespace dflash {
namespace {

class SingleRank final : public Communicator {
public:
    int rank() const override { return 0; }
    int ranks() const override { return 1; }
    void all_reduce_sum(const Tensor&) override {}
    void all_reduce_sum(std::span<double>) override {}
};

}  // namespace

std::unique_ptr<Communicator> make_single_rank() { return std::make_unique<SingleRank>(); }

}  // namespace dflash
