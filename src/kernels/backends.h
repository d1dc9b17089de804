// SPDX-License-Identifier: MIT
// The seam between an op and its back ends: every op has a launcher of the same name in cpu:: and in cuda::, listed once here.
// <op>.cpp checks the arguments and calls one of the two; no_cuda.cpp makes the cuda:: ones of a build without CUDA throw.
#pragma once

#include <memory>
#include <vector>

#include "kernels/adamw.h"
#include "kernels/anchor_attention.h"
#include "kernels/causal_attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/delta_rule.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/head_norm_rope.h"
#include "kernels/linear.h"
#include "kernels/log_sum_exp.h"
#include "kernels/loss_sums.h"
#include "kernels/masked_softmax.h"
#include "kernels/matmul_library.h"
#include "kernels/muon.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"

// result, name, arguments
#define DFLASH_LAUNCHERS(LAUNCHER)                                                                    \
    LAUNCHER(std::unique_ptr<MatmulLibrary>, make_matmul_library, (Device))                           \
    LAUNCHER(void, rms_norm_forward, (const Context&, const RmsNormForwardParams&))                   \
    LAUNCHER(void, rms_norm_backward, (const Context&, const RmsNormBackwardParams&))                 \
    LAUNCHER(void, gated_rms_norm_forward, (const Context&, const GatedRmsNormParams&))               \
    LAUNCHER(void, head_norm_rope_forward, (const Context&, const HeadNormRopeForwardParams&))        \
    LAUNCHER(void, head_norm_rope_backward, (const Context&, const HeadNormRopeBackwardParams&))      \
    LAUNCHER(void, swiglu_forward, (const Context&, const SwigluForwardParams&))                      \
    LAUNCHER(void, swiglu_backward, (const Context&, const SwigluBackwardParams&))                    \
    LAUNCHER(void, sigmoid_gate_forward, (const Context&, const SigmoidGateParams&))                  \
    LAUNCHER(void, gather_rows, (const Context&, const GatherRowsParams&))                            \
    LAUNCHER(void, scatter_rows, (const Context&, const ScatterRowsParams&))                          \
    LAUNCHER(void, cross_entropy_forward_backward, (const Context&, const CrossEntropyParams&))       \
    LAUNCHER(void, adamw_step, (const Context&, const AdamWParams&))                                  \
    LAUNCHER(void, gradient_scale, (const Context&, const GradientScaleParams&))                      \
    LAUNCHER(void, dpace_weights, (const Context&, const DpaceWeightsParams&))                        \
    LAUNCHER(void, loss_sums, (const Context&, const LossSumsParams&))                                \
    LAUNCHER(void, muon_momentum, (const Context&, const MuonMomentumParams&))                        \
    LAUNCHER(void, muon_update, (const Context&, const MuonUpdateParams&))                            \
    LAUNCHER(void, fill_zero, (const Context&, const Tensor&))                                        \
    LAUNCHER(void, cast, (const Context&, const Tensor&, const Tensor&))                              \
    LAUNCHER(void, add, (const Context&, const Tensor&, const Tensor&))                               \
    LAUNCHER(void, axpby, (const Context&, float, const Tensor&, float, const Tensor&))               \
    LAUNCHER(void, copy_columns, (const Context&, const Tensor&, const Tensor&, std::int64_t))        \
    LAUNCHER(void, argmax_rows, (const Context&, const Tensor&, const Tensor&))                       \
    LAUNCHER(void, log_sum_exp_rows, (const Context&, const Tensor&, const Tensor&))                  \
    LAUNCHER(void, anchor_attention_forward, (const Context&, const AnchorAttentionForwardParams&))   \
    LAUNCHER(void, anchor_attention_backward, (const Context&, const AnchorAttentionBackwardParams&)) \
    LAUNCHER(void, masked_softmax_forward, (const Context&, const MaskedSoftmaxParams&))              \
    LAUNCHER(void, masked_softmax_backward, (const Context&, const MaskedSoftmaxBackwardParams&))     \
    LAUNCHER(void, causal_attention_forward, (const Context&, const CausalAttentionParams&))          \
    LAUNCHER(void, causal_conv_silu_forward, (const Context&, const CausalConvParams&))               \
    LAUNCHER(void, conv_history_append, (const Context&, const Tensor&, const Tensor&))               \
    LAUNCHER(void, delta_rule_chunk_forward, (const Context&, const DeltaRuleParams&))                \
    LAUNCHER(void, delta_rule_recurrent_forward, (const Context&, const DeltaRuleParams&))

// Scratch that ops take from the context's workspace: pure functions, there for both devices in every build, so that a plan for a GPU needs
// neither a GPU nor its toolkit.
#define DFLASH_WORKSPACE_SIZES(SIZE)                                             \
    SIZE(std::size_t, linear_workspace_bytes, (const std::vector<LinearShape>&)) \
    SIZE(std::size_t, rms_norm_backward_workspace_bytes, (std::int64_t))         \
    SIZE(std::size_t, head_norm_rope_backward_workspace_bytes, (std::int64_t))   \
    SIZE(std::size_t, gradient_scale_workspace_bytes, ())                        \
    SIZE(std::size_t, delta_rule_workspace_bytes, (const DeltaRuleParams&))      \
    SIZE(std::size_t, causal_attention_workspace_bytes, (std::int64_t, std::int64_t, std::int64_t, std::int64_t))

namespace dflash {

#define DFLASH_DECLARE_LAUNCHER(result, name, arguments) result name arguments;
namespace cpu {
DFLASH_LAUNCHERS(DFLASH_DECLARE_LAUNCHER)
DFLASH_WORKSPACE_SIZES(DFLASH_DECLARE_LAUNCHER)
}  // namespace cpu
namespace cuda {
DFLASH_LAUNCHERS(DFLASH_DECLARE_LAUNCHER)
DFLASH_WORKSPACE_SIZES(DFLASH_DECLARE_LAUNCHER)
}  // namespace cuda
#undef DFLASH_DECLARE_LAUNCHER

// The launcher for the device's kind: on_device(device, cpu::op, cuda::op)(arguments).
template <typename Function>
Function* on_device(Device device, Function* cpu_launcher, Function* cuda_launcher) {
    return device.type == DeviceType::kCuda ? cuda_launcher : cpu_launcher;
}

}  // namespace dflash
