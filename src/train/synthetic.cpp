// SPDX-License-Identifier: MIT
#include "train/synthetic.h"

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "kernels/elementwise.h"
#include "model/tensor_loader.h"

namespace dflash {
namespace {

constexpr std::int64_t kRows = 64;

}  // namespace

RandomRows::RandomRows(const Context& context, const Tensor& like, std::uint64_t seed, double scale)
    : rows_(context.device(), like.dtype, {std::min(kRows, like.rows()), like.row_elements()}) {
    std::vector<float> values(static_cast<std::size_t>(rows_.tensor().elements()));
    Philox rng(seed, 1);
    for (float& value : values) value = static_cast<float>(scale * (2 * rng.next_double() - 1));
    TensorLoader loader(context.device());
    loader.convert(values.data(), rows_);
    loader.finish();
}

void RandomRows::lay(const Context& context, const Tensor& tensor) const {
    const Tensor& rows = rows_;
    for (std::int64_t begin = 0; begin < tensor.rows(); begin += rows.rows()) {
        const std::int64_t count = std::min(rows.rows(), tensor.rows() - begin);
        copy_columns(context, rows.slice_rows(0, count), tensor.slice_rows(begin, count), 0);
    }
}

void fill_random(const Context& context, const Tensor& tensor, std::uint64_t seed, double scale) {
    const RandomRows rows(context, tensor, seed, scale);
    rows.lay(context, tensor);
    context.synchronize();
}

}  // namespace dflash
