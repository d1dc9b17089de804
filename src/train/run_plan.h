// SPDX-License-Identifier: MIT
// The memory plan of a training run, composed from every stage's buffer list: a pure function of the configs and the settings, --device among
// them ("auto" is the CPU here: whoever knows the machine resolves it). `train` allocates exactly this, `dflash plan` prints it. Phases of one step in order, evaluation last; peak = persistent + the largest phase.
//   target | context | forward 0 .. L-1 | loss | backward L-1 .. 0 | context backward | optimizer | evaluation
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "draft/draft_model.h"
#include "generate/generate.h"
#include "model/target_config.h"
#include "target/target_model.h"
#include "tensor/plan.h"
#include "train/run_settings.h"

namespace dflash {

struct RunPlan {
    Device device;  // of target and drafter
    Plan plan;
    DraftPhases phases;
    TargetForwardSettings target_forward;
    DraftStepSettings draft_step;
    GeneratorSettings generator;
    TargetPart target_part = TargetPart::kAll;
    std::int64_t target_layers = 0;    // that are loaded
    bool live = true;                  // the target runs here, as against stored features
    bool decodes = false;              // evaluation decodes, so the whole target is there
    std::vector<LinearShape> linears;  // every product of the run
    std::size_t pinned_bytes = 0;      // page-locked host memory, on CUDA
};

constexpr const char* kWorkspaceBuffer = "workspace";

RunPlan make_run_plan(const TargetConfig& target, const DraftSpec& draft, const RunSettings& settings);

// The phase that needs most.
int peak_phase(const Plan& plan);

// What a device takes beside the arena, for plans that are made without it: on CUDA the driver's context and the libraries' code (0.55 GB
// were measured on an H200 with CUDA 13.0), nothing on the CPU.
std::size_t reserved_bytes(Device device);

// The largest value of --max-anchors, or of --token-budget, with which the run fits into `memory_bytes`, all else equal; 0 = none does.
std::int64_t largest_max_anchors(const TargetConfig& target, const DraftSpec& draft, const RunSettings& settings, std::size_t memory_bytes);
std::int64_t largest_token_budget(const TargetConfig& target, const DraftSpec& draft, const RunSettings& settings,
                                  std::size_t memory_bytes);

// Stops a run that cannot fit, before anything is loaded: Error(kBadInput) says what fits instead.
void check_memory(const TargetConfig& target, const DraftSpec& draft, const RunSettings& settings, const RunPlan& plan,
                  std::size_t memory_bytes);

}  // namespace dflash
