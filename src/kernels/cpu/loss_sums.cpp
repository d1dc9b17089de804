// SPDX-License-Identifier: MIT
// A few thousand rows: one thread, in order.
#include <array>

#include "kernels/backends.h"

namespace dflash::cpu {

void dpace_weights(const Context&, const DpaceWeightsParams& p) {
    const std::int32_t* rows = p.rows.i32();
    const float* label_prob = p.label_prob.f32();
    float* weight = p.weight.f32();
    const std::int64_t count = p.rows.elements();
    for (std::int64_t begin = 0; begin < count;) {
        std::int64_t end = begin;
        std::array<double, kMaxBlockSize> product{};
        double running = 1;
        while (end < count && rows[end] / p.block_size == rows[begin] / p.block_size) {
            running *= (1 - p.alpha) * static_cast<double>(label_prob[end]) + p.alpha;
            product[static_cast<std::size_t>(end - begin)] = running;
            ++end;
        }
        double suffix = 0;
        for (std::int64_t i = end; i-- > begin;) {
            suffix += product[static_cast<std::size_t>(i - begin)];
            weight[i] *= static_cast<float>(suffix);
        }
        begin = end;
    }
}

void loss_sums(const Context&, const LossSumsParams& p) {
    double* sums = p.sums.f64();
    double* slot_count = sums + kSlotCount;
    double* slot_correct = slot_count + p.block_size;
    std::int64_t block = -1;
    bool prefix = true;
    for (std::int64_t i = 0; i < p.rows.elements(); ++i) {
        const std::int64_t row = p.rows.i32()[i];
        const std::int64_t slot = row % p.block_size;
        const bool correct = p.correct.i32()[i] != 0;
        const auto weight = static_cast<double>(p.weight.f32()[i]);
        sums[kLossSum] += weight * static_cast<double>(p.loss.f32()[i]);
        sums[kWeightSum] += weight;
        slot_count[slot] += 1;
        slot_correct[slot] += correct ? 1 : 0;
        prefix = correct && (row / p.block_size != block || prefix);
        sums[kAcceptedSum] += prefix ? 1 : 0;
        block = row / p.block_size;
    }
}

}  // namespace dflash::cpu
