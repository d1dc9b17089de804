// SPDX-License-Identifier: MIT
#include <cmath>

#include "kernels/backends.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/sum_of_squares.h"
#include "kernels/elementwise.h"

namespace dflash::cpu {

void muon_momentum(const Context& context, const MuonMomentumParams& p) {
    const double grad_scale = *p.grad_scale.f64();
    if (!std::isfinite(grad_scale)) {
        dflash::fill_zero(context, p.x);
        return;
    }
    const auto scale = static_cast<float>(grad_scale);
    dflash::axpby(context, scale, p.gradient, p.decay, p.momentum);
    dflash::axpby(context, scale, p.gradient, 0.0F, p.x);
    dflash::axpby(context, p.decay, p.momentum, 1.0F, p.x);
    const double norm = std::sqrt(sum_of_squares({p.x}));
    if (norm > 0) dflash::axpby(context, static_cast<float>(1.0 / norm), p.x, 0.0F, p.x);
}

void muon_update(const Context& context, const MuonUpdateParams& p) {
    if (std::isfinite(*p.grad_scale.f64())) dflash::axpby(context, -p.rate, p.x, p.keep, p.weight);
}

}  // namespace dflash::cpu
