// SPDX-License-Identifier: MIT
#include "train/optimizer.h"

#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "kernels/elementwise.h"
#include "tensor/working_dtype.h"

namespace dflash {
namespace {

constexpr const char* kGradientPrefix = "draft.gradient";
constexpr const char* kFirstMomentPrefix = "optimizer.m";
constexpr const char* kSecondMomentPrefix = "optimizer.v";
constexpr const char* kNorm = "optimizer.norm";
constexpr const char* kScale = "optimizer.scale";
constexpr const char* kMuonX = "optimizer.muon.x";
constexpr const char* kMuonNext = "optimizer.muon.next";
constexpr const char* kMuonGram = "optimizer.muon.gram";
constexpr const char* kMuonGramSquared = "optimizer.muon.gram_squared";

std::string buffer_name(const char* prefix, const std::string& name) { return std::string(prefix) + "." + name; }

std::vector<Shape> muon_matrices(const DraftSpec& spec, OptimizerKind kind) {
    std::vector<Shape> matrices;
    if (kind == OptimizerKind::kAdamW) return matrices;
    for (const DraftTensorDecl& tensor : draft_tensor_table(spec)) {
        if (tensor.shape.rank() == 2) matrices.push_back(tensor.shape);
    }
    return matrices;
}

}  // namespace

std::vector<BufferSpec> optimizer_buffers(const DraftSpec& spec, const OptimizerSettings& settings, const OptimizerLifetimes& lifetimes) {
    std::vector<BufferSpec> buffers;
    for (const DraftTensorDecl& tensor : draft_tensor_table(spec)) {
        const bool is_matrix = tensor.shape.rank() == 2;
        const auto add = [&](const char* prefix, DType dtype, Category category, Lifetime lifetime) {
            buffers.push_back({buffer_name(prefix, tensor.name), dtype, tensor.shape, category, lifetime});
        };
        add(kGradientPrefix, is_matrix ? settings.matrix_gradients : DType::kF32, Category::kGradients, lifetimes.gradient(tensor.name));
        add(kFirstMomentPrefix, DType::kF32, Category::kMoments, lifetimes.persistent);
        if (settings.kind == OptimizerKind::kAdamW || !is_matrix) {
            add(kSecondMomentPrefix, DType::kF32, Category::kMoments, lifetimes.persistent);
        }
    }
    for (const char* name : {kNorm, kScale}) buffers.push_back({name, DType::kF64, {1}, Category::kWorkspace, lifetimes.persistent});
    if (settings.kind == OptimizerKind::kMuon) {
        const MuonScratchSize size = muon_scratch_size(muon_matrices(spec, settings.kind));
        for (const auto& [name, elements] : {std::pair{kMuonX, size.matrix_elements}, std::pair{kMuonNext, size.matrix_elements},
                                             std::pair{kMuonGram, size.gram_elements}, std::pair{kMuonGramSquared, size.gram_elements}}) {
            buffers.push_back({name, working_dtype(settings.device), {elements}, Category::kWorkspace, lifetimes.update});
        }
    }
    return buffers;
}

std::vector<LinearShape> optimizer_linears(const DraftSpec& spec, OptimizerKind kind) { return muon_linears(muon_matrices(spec, kind)); }

std::size_t optimizer_workspace_bytes(Device device) { return gradient_scale_workspace_bytes(device); }

Optimizer::Optimizer(const DraftSpec& spec, const DraftMasters& masters, const Arena& arena)
    : gradients_(bind_draft_tensors(spec, kGradientPrefix, arena)),
      named_gradients_(named_tensors(gradients_)),
      norm_(arena.tensor(kNorm)),
      scale_(arena.tensor(kScale)) {
    const std::vector<NamedMaster> named = named_masters(masters);
    for (std::size_t i = 0; i < named.size(); ++i) {
        const auto& [name, weight, remainder] = named[i];
        const Tensor& gradient = named_gradients_[i].tensor;
        DFLASH_CHECK(name == named_gradients_[i].name, "tensor order differs at '{}'", name);
        const Tensor m = arena.tensor(buffer_name(kFirstMomentPrefix, name));
        const std::string v_name = buffer_name(kSecondMomentPrefix, name);
        const Tensor v = arena.has(v_name) ? arena.tensor(v_name) : Tensor{};
        state_.push_back({name, weight, remainder, m, v});
        gradient_list_.push_back(gradient);
        if (v.defined()) {
            adamw_tensors_.push_back({.weight = weight, .remainder = remainder, .gradient = gradient, .m = m, .v = v});
        } else {
            muon_matrices_.push_back(
                {.weight = weight,
                 .remainder = remainder,
                 .gradient = gradient,
                 .momentum = m,
                 .scratch = {arena.tensor(kMuonX), arena.tensor(kMuonNext), arena.tensor(kMuonGram), arena.tensor(kMuonGramSquared)},
                 .grad_scale = scale_});
        }
    }
}

void Optimizer::zero_moments(const Context& context) {
    for (const State& state : state_) {
        fill_zero(context, state.m);
        if (state.v.defined()) fill_zero(context, state.v);
    }
}

void Optimizer::update(const Context& context, const OptimizerStep& step, const Tensor& sums) {
    gradient_scale(context, {.gradients = &gradient_list_, .sums = sums, .max_norm = step.max_grad_norm, .norm = norm_, .scale = scale_});
    const auto lr = static_cast<float>(step.lr);
    adamw_step(context, {.tensors = &adamw_tensors_, .lr = lr, .step = step.step, .grad_scale = scale_});
    for (MuonParams& matrix : muon_matrices_) {
        matrix.lr = lr;
        muon_step(context, matrix);
    }
}

double Optimizer::gradient_norm(const Context& context) const {
    double norm = 0;
    double scale = 0;
    context.download(norm_, &norm);
    context.download(scale_, &scale);
    return std::isnan(scale) ? std::numeric_limits<double>::quiet_NaN() : norm;
}

}  // namespace dflash
