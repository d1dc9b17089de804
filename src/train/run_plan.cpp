// SPDX-License-Identifier: MIT
#include "train/run_plan.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "base/byte_size.h"
#include "base/error.h"
#include "kernels/context.h"
#include "target/stored_features.h"
#include "tensor/device_choice.h"
#include "tensor/host_reader.h"
#include "tensor/working_dtype.h"
#include "train/optimizer.h"

namespace dflash {
namespace {

constexpr const char* kFeaturePrefix = "target.features.";

struct Phases {
    std::vector<std::string> names;
    int add(std::string name) {
        names.push_back(std::move(name));
        return static_cast<int>(names.size()) - 1;
    }
};

void append(std::vector<BufferSpec>& list, const std::vector<BufferSpec>& more) { list.insert(list.end(), more.begin(), more.end()); }
void append(std::vector<LinearShape>& list, const std::vector<LinearShape>& more) { list.insert(list.end(), more.begin(), more.end()); }

Recompute recompute_of(const std::string& name) {
    return name == "layer" ? Recompute::kLayer : name == "attention" ? Recompute::kAttention : Recompute::kNone;
}

void choose_settings(const TargetConfig& target, const DraftSpec& draft, const RunSettings& settings, RunPlan& run) {
    run.device = device_of_name(settings.device);
    run.live = settings.features.empty();
    run.decodes = run.live && settings.eval_count > 0 && (!settings.val_data.empty() || !settings.eval_prompts.empty());
    run.target_forward = {
        .max_tokens = settings.token_budget, .taps = draft.taps, .want_final = settings.loss == "kl", .device = run.device};
    run.draft_step = {.max_tokens = settings.token_budget,
                      .max_anchors = settings.max_anchors,
                      .loss_chunk = settings.loss_chunk,
                      .loss = settings.loss == "kl" ? LossKind::kKl : LossKind::kCrossEntropy,
                      .weighting = settings.weighting == "dpace" ? Weighting::kDpace : Weighting::kDecay,
                      .dpace_alpha = settings.dpace_alpha,
                      .recompute = recompute_of(settings.recompute),
                      .device = run.device};
    const std::int64_t longest = std::min(settings.token_budget + settings.eval_new_tokens + draft.block_size, target.max_positions);
    run.generator = {.max_tokens = longest,
                     .max_prompt = std::min(settings.token_budget, longest),
                     .block_size = draft.block_size,
                     .device = run.device};
    run.target_part = run.live ? TargetPart::kAll : TargetPart::kEmbeddingAndHead;
    run.target_layers = run.decodes ? target.layers : run.target_forward.layers_to_run(target);
}

// With one micro-batch a step, a gradient is born in its layer's backward; else gradients collect over all phases of the step.
Lifetime gradient_lifetime(const std::string& name, const DraftPhases& phases, std::int64_t accumulate) {
    if (accumulate > 1) return {0, phases.optimizer};
    if (name == "norm.weight") return {phases.backward.back(), phases.optimizer};
    constexpr std::string_view kLayer = "layers.";
    if (name.rfind(kLayer, 0) != 0) return {phases.context_backward, phases.optimizer};
    return {phases.backward[std::stoul(name.substr(kLayer.size()))], phases.optimizer};
}

// By default bf16 where a step has one micro-batch: then every gradient is one product's result, rounded once.
DType matrix_gradients(const RunSettings& settings, Device device) {
    if (settings.grad_dtype == "bf16") return DType::kBF16;
    if (settings.grad_dtype == "f32" || settings.accumulate * settings.dp_pairs > 1) return DType::kF32;
    return working_dtype(device);
}

}  // namespace

RunPlan make_run_plan(const TargetConfig& target, const DraftSpec& draft, const RunSettings& settings) {
    RunPlan run;
    choose_settings(target, draft, settings, run);
    Phases phases;
    const int target_phase = phases.add(run.live ? "target" : "features");
    const auto layers = static_cast<std::size_t>(draft.num_layers());
    run.phases.context = phases.add("context");
    for (std::size_t i = 0; i < layers; ++i) run.phases.forward.push_back(phases.add(fmt::format("forward {}", i)));
    run.phases.loss = phases.add("loss");
    run.phases.backward.resize(layers);
    for (std::size_t i = layers; i-- > 0;) run.phases.backward[i] = phases.add(fmt::format("backward {}", i));
    run.phases.context_backward = phases.add("context backward");
    run.phases.optimizer = phases.add("optimizer");
    const int evaluation = phases.add("evaluation");
    const Lifetime persistent = {0, evaluation};
    run.phases.persistent = persistent;

    std::vector<BufferSpec> buffers = target_weight_buffers(target, run.target_part, run.device, persistent, run.target_layers);
    append(buffers, draft_master_buffers(draft, run.device, persistent));
    const OptimizerKind optimizer = settings.optimizer == "muon" ? OptimizerKind::kMuon : OptimizerKind::kAdamW;
    const auto gradient = [&](const std::string& name) { return gradient_lifetime(name, run.phases, settings.accumulate); };
    const OptimizerSettings optimizer_settings = {optimizer, run.device, matrix_gradients(settings, run.device)};
    append(buffers, optimizer_buffers(draft, optimizer_settings, {gradient, persistent, {run.phases.optimizer, run.phases.optimizer}}));
    append(run.linears, optimizer_linears(draft, optimizer));
    // Stored features need the rows that they are read into, nothing else of the target's forward; the next ones arrive beside the optimizer.
    const Lifetime features = {target_phase, run.live ? run.phases.context_backward : run.phases.optimizer};
    std::size_t feature_bytes = 0;
    for (BufferSpec& buffer : target_forward_buffers(target, run.target_forward, {target_phase, target_phase}, features, persistent)) {
        const bool is_feature = buffer.name.rfind(kFeaturePrefix, 0) == 0;
        if (is_feature) feature_bytes += buffer.bytes();
        if (run.live || is_feature) buffers.push_back(std::move(buffer));
    }
    if (run.device.type == DeviceType::kCuda) run.pinned_bytes = kStagingBytes + kHostReaderBytes;
    const std::size_t sources = run.live ? 0 : settings.val_data.empty() ? 1 : 2;
    run.pinned_bytes += sources * stored_features_pinned_bytes(run.device, feature_bytes);
    append(buffers, draft_step_buffers(draft, run.draft_step, run.phases));
    append(run.linears, draft_step_linears(draft, run.draft_step));
    std::size_t workspace = std::max(draft_step_workspace_bytes(draft, run.draft_step), optimizer_workspace_bytes(run.device));
    if (run.live) {
        append(run.linears, target_forward_linears(target, run.target_forward));
        workspace = std::max(workspace, target_forward_workspace_bytes(target, run.target_forward));
    }
    if (run.decodes) {
        append(buffers, generator_buffers(target, &draft, run.generator, {evaluation, evaluation}, persistent));
        append(run.linears, generator_linears(target, &draft, run.generator));
        workspace = std::max(workspace, generator_workspace_bytes(target, &draft, run.generator));
    }
    workspace = std::max(workspace, linear_workspace_bytes(run.device, run.linears));
    buffers.push_back({kWorkspaceBuffer, DType::kU8, {static_cast<std::int64_t>(workspace)}, Category::kWorkspace, persistent});
    run.plan = make_plan(std::move(phases.names), std::move(buffers));
    return run;
}

std::size_t reserved_bytes(Device device) { return device.type == DeviceType::kCuda ? std::size_t{600'000'000} : 0; }

int peak_phase(const Plan& plan) {
    int peak = 0;
    for (int phase = 1; phase < static_cast<int>(plan.phases.size()); ++phase) {
        if (plan.phase_bytes(phase) > plan.phase_bytes(peak)) peak = phase;
    }
    return peak;
}

namespace {

// The largest value in 1 .. limit for which `fits` holds, by bisection; 0 = none. Need grows with the value.
std::int64_t largest_fitting(std::int64_t limit, const std::function<bool(std::int64_t)>& fits) {
    if (!fits(1)) return 0;
    std::int64_t good = 1;
    std::int64_t bad = 2;
    while (bad <= limit && fits(bad)) {
        good = bad;
        bad *= 2;
    }
    while (bad - good > 1) {
        const std::int64_t middle = good + (bad - good) / 2;
        (fits(middle) ? good : bad) = middle;
    }
    return std::min(good, limit);
}

constexpr std::int64_t kSearchLimit = std::int64_t{1} << 20;

}  // namespace

std::int64_t largest_max_anchors(const TargetConfig& target, const DraftSpec& draft, const RunSettings& settings,
                                 std::size_t memory_bytes) {
    // More anchors than tokens are never drawn.
    return largest_fitting(std::min(kSearchLimit, settings.token_budget), [&](std::int64_t anchors) {
        RunSettings trial = settings;
        trial.max_anchors = anchors;
        return make_run_plan(target, draft, trial).plan.arena_bytes <= memory_bytes;
    });
}

std::int64_t largest_token_budget(const TargetConfig& target, const DraftSpec& draft, const RunSettings& settings,
                                  std::size_t memory_bytes) {
    return largest_fitting(kSearchLimit, [&](std::int64_t tokens) {
        RunSettings trial = settings;
        trial.token_budget = tokens;
        return make_run_plan(target, draft, trial).plan.arena_bytes <= memory_bytes;
    });
}

void check_memory(const TargetConfig& target, const DraftSpec& draft, const RunSettings& settings, const RunPlan& plan,
                  std::size_t memory_bytes) {
    if (plan.plan.arena_bytes <= memory_bytes) return;
    const std::int64_t anchors = largest_max_anchors(target, draft, settings, memory_bytes);
    const std::int64_t tokens = largest_token_budget(target, draft, settings, memory_bytes);
    std::string advice;
    if (anchors > 0) advice += fmt::format("--max-anchors {} fits", anchors);
    if (tokens > 1) advice += fmt::format("{}--token-budget {} fits", advice.empty() ? "" : "; ", tokens);
    if (advice.empty()) advice = "no --max-anchors or --token-budget alone fits: lower both, or --draft-layers";
    throw_bad_input("the run needs {}, {} is there: {}", format_bytes(plan.plan.arena_bytes), format_bytes(memory_bytes), advice);
}

}  // namespace dflash
