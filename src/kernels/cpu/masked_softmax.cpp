// SPDX-License-Identifier: MIT
#include "kernels/masked_softmax.h"

#include <algorithm>
#include <cmath>

#include "kernels/backends.h"
#include "kernels/ref/mask_range.h"

namespace dflash::cpu {

void masked_softmax_forward(const Context&, const MaskedSoftmaxParams& p) {
    const std::int64_t rows = p.scores.rows(), columns = p.scores.row_elements();
#pragma omp parallel for schedule(static)
    for (std::int64_t row = 0; row < rows; ++row) {
        const ref::MaskRange range = ref::mask_range(p.mask.begin_row.i32(), p.mask.anchor_row.i32(), p.mask.num_live, p.mask.block_size,
                                                     p.mask.window, p.mask.causal_block, columns - rows, row);
        const float* scores = p.scores.f32() + row * columns;
        float* out = p.p.f32() + row * columns;
        float largest = -HUGE_VALF;
        for (std::int64_t c = 0; c < columns; ++c) {
            if (range.sees(c)) largest = std::max(largest, p.scale * scores[c]);
        }
        double sum = 0;
        for (std::int64_t c = 0; c < columns; ++c) {
            out[c] = range.sees(c) ? std::exp(p.scale * scores[c] - largest) : 0.0F;
            sum += static_cast<double>(out[c]);
        }
        const float inverse = sum > 0 ? static_cast<float>(1 / sum) : 0.0F;
        for (std::int64_t c = 0; c < columns; ++c) out[c] *= inverse;
    }
}

void masked_softmax_backward(const Context&, const MaskedSoftmaxBackwardParams& p) {
    const std::int64_t columns = p.d_p.row_elements();
#pragma omp parallel for schedule(static)
    for (std::int64_t row = 0; row < p.d_p.rows(); ++row) {
        const float* weight = p.p.f32() + row * columns;
        const float* gradient = p.d_p.f32() + row * columns;
        float* out = p.d_scores.f32() + row * columns;
        double sum = 0;
        for (std::int64_t c = 0; c < columns; ++c) sum += static_cast<double>(weight[c]) * static_cast<double>(gradient[c]);
        for (std::int64_t c = 0; c < columns; ++c) out[c] = p.scale * weight[c] * (gradient[c] - static_cast<float>(sum));
    }
}

}  // namespace dflash::cpu
