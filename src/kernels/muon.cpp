// SPDX-License-Identifier: MIT
#include "kernels/muon.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/backends.h"
#include "kernels/checks.h"
#include "kernels/elementwise.h"
#include "tensor/working_dtype.h"

namespace dflash {
namespace {

// The quintic's coefficients, as published: they push every singular value to about 1 in five rounds.
constexpr float kLinear = 3.4445F;
constexpr float kCubic = -4.7750F;
constexpr float kQuintic = 2.0315F;
constexpr int kRounds = 5;

bool is_tall(const Shape& shape) { return shape[0] > shape[1]; }
std::int64_t smaller_side(const Shape& shape) { return std::min(shape[0], shape[1]); }

// gram = x x^T, or x^T x of a tall x: always square in the smaller side.
void gram_matrix(const Context& context, const Tensor& x, const Tensor& gram) {
    if (is_tall(x.shape)) {
        linear_backward_weight(context, {.d_y = x, .x = x, .d_weight = gram, .write = Write::kOverwrite});
    } else {
        linear_forward(context, {.x = x, .weight = x, .y = gram});
    }
}

// y += p x, or x p of a tall x, with p symmetric.
void add_product(const Context& context, const Tensor& p, const Tensor& x, const Tensor& y) {
    if (is_tall(x.shape)) {
        linear_forward(context, {.x = x, .weight = p, .y = y, .write = Write::kAccumulate});
    } else {
        linear_backward_input(context, {.d_y = p, .weight = x, .d_x = y, .write = Write::kAccumulate});
    }
}

}  // namespace

MuonScratchSize muon_scratch_size(const std::vector<Shape>& matrices) {
    MuonScratchSize size;
    for (const Shape& shape : matrices) {
        size.matrix_elements = std::max(size.matrix_elements, shape.elements());
        size.gram_elements = std::max(size.gram_elements, smaller_side(shape) * smaller_side(shape));
    }
    return size;
}

std::vector<LinearShape> muon_linears(const std::vector<Shape>& matrices) {
    std::vector<LinearShape> linears;
    for (const Shape& shape : matrices) {
        const std::int64_t rows = shape[0];
        const std::int64_t columns = shape[1];
        const std::int64_t side = smaller_side(shape);
        linears.push_back({.max_rows = side, .in = side, .out = side});
        if (is_tall(shape)) {
            linears.push_back({.max_rows = rows, .in = columns, .out = columns, .forward = true, .backward_weight = true});
        } else {
            linears.push_back({.max_rows = rows, .in = columns, .out = rows, .forward = true, .backward_input = true});
        }
    }
    return linears;
}

void muon_momentum(const Context& context, const MuonMomentumParams& p) {
    constexpr const char* kOp = "muon_momentum";
    const std::int64_t n = p.gradient.elements();
    check_gradient(context, kOp, p.gradient, n);
    check_vector(context, kOp, "momentum", p.momentum, DType::kF32, n);
    check_vector(context, kOp, "x", p.x, working_dtype(context.device()), n);
    check_vector(context, kOp, "grad_scale", p.grad_scale, DType::kF64, 1);
    on_device(context.device(), cpu::muon_momentum, cuda::muon_momentum)(context, p);
}

void muon_update(const Context& context, const MuonUpdateParams& p) {
    constexpr const char* kOp = "muon_update";
    check_master(context, kOp, p.weight, p.remainder, p.weight.elements());
    check_vector(context, kOp, "x", p.x, working_dtype(context.device()), p.weight.elements());
    check_vector(context, kOp, "grad_scale", p.grad_scale, DType::kF64, 1);
    on_device(context.device(), cpu::muon_update, cuda::muon_update)(context, p);
}

void muon_step(const Context& context, const MuonParams& p) {
    const Shape& shape = p.weight.shape;
    DFLASH_CHECK(shape.rank() == 2, "muon_step: weight {} is no matrix", shape.to_string());
    if (shape.elements() == 0) return;
    const Shape square = {smaller_side(shape), smaller_side(shape)};
    Tensor x = p.scratch.x.view(shape);
    Tensor next = p.scratch.next.view(shape);
    const Tensor gram = p.scratch.gram.view(square);
    const Tensor gram_squared = p.scratch.gram_squared.view(square);

    muon_momentum(context, {.gradient = p.gradient, .momentum = p.momentum, .decay = p.decay, .grad_scale = p.grad_scale, .x = x});
    for (int round = 0; round < kRounds; ++round) {
        gram_matrix(context, x, gram);
        linear_forward(context, {.x = gram, .weight = gram, .y = gram_squared});
        axpby(context, kCubic, gram, kQuintic, gram_squared);
        axpby(context, kLinear, x, 0.0F, next);
        add_product(context, gram_squared, x, next);
        std::swap(x, next);
    }
    const float size = 0.2F * std::sqrt(static_cast<float>(std::max(shape[0], shape[1])));
    muon_update(context, {.weight = p.weight,
                          .remainder = p.remainder,
                          .x = x,
                          .rate = p.lr * size,
                          .keep = 1.0F - p.lr * p.weight_decay,
                          .grad_scale = p.grad_scale});
}

}  // namespace dflash
