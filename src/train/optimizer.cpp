// SPDX-License-Identifier: MIT
#include "train/optimizer.h"

#include <cmath>

#include "base/check.h"
#include "kernels/elementwise.h"

namespace dflash {
namespace {

constexpr const char* kGradientPrefix = "draft.gradient";
constexpr const char* kFirstMomentPrefix = "optimizer.m";
constexpr const char* kSecondMomentPrefix = "optimizer.v";

}  // namespace

std::vector<BufferSpec> optimizer_buffers(const DraftSpec& spec, const std::function<Lifetime(const std::string&)>& gradient_lifetime,
                                          Lifetime persistent) {
    std::vector<BufferSpec> buffers = draft_tensor_buffers(spec, kGradientPrefix, Category::kGradients, persistent);
    for (BufferSpec& buffer : buffers) buffer.lifetime = gradient_lifetime(buffer.name.substr(std::string(kGradientPrefix).size() + 1));
    for (const char* prefix : {kFirstMomentPrefix, kSecondMomentPrefix}) {
        const std::vector<BufferSpec> moments = draft_tensor_buffers(spec, prefix, Category::kMoments, persistent);
        buffers.insert(buffers.end(), moments.begin(), moments.end());
    }
    return buffers;
}

Optimizer::Optimizer(const DraftSpec& spec, const DraftTensors& weights, const Arena& arena)
    : gradients_(bind_draft_tensors(spec, kGradientPrefix, arena)),
      named_weights_(named_tensors(weights)),
      named_gradients_(named_tensors(gradients_)) {
    const std::vector<NamedTensor> m = named_tensors(bind_draft_tensors(spec, kFirstMomentPrefix, arena));
    const std::vector<NamedTensor> v = named_tensors(bind_draft_tensors(spec, kSecondMomentPrefix, arena));
    for (std::size_t i = 0; i < named_weights_.size(); ++i) {
        const NamedTensor& weight = named_weights_[i];
        DFLASH_CHECK(weight.name == named_gradients_[i].name && weight.name == m[i].name && weight.name == v[i].name,
                     "tensor order differs at '{}'", weight.name);
        state_.push_back({weight.name, weight.tensor, m[i].tensor, v[i].tensor});
        tensors_.push_back({weight.tensor, named_gradients_[i].tensor, m[i].tensor, v[i].tensor, 0.0F});
        gradient_list_.push_back(named_gradients_[i].tensor);
    }
}

void Optimizer::zero_moments(const Context& context) {
    for (const State& state : state_) {
        fill_zero(context, state.m);
        fill_zero(context, state.v);
    }
}

double Optimizer::gradient_norm(const Context& context, double weight_sum) {
    if (weight_sum == 0) return 0;
    return std::sqrt(sum_of_squares(context, gradient_list_)) / weight_sum;
}

void Optimizer::update(const Context& context, const OptimizerStep& step, double gradient_norm) {
    double scale = step.weight_sum == 0 ? 0.0 : 1.0 / step.weight_sum;
    if (step.max_grad_norm > 0 && gradient_norm > step.max_grad_norm) scale *= step.max_grad_norm / gradient_norm;
    adamw_step(context, {.tensors = &tensors_, .lr = static_cast<float>(step.lr), .step = step.step, .grad_scale = scale});
}

}  // namespace dflash
