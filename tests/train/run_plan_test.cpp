// SPDX-License-Identifier: MIT
#include "train/run_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "base/rng.h"
#include "support/device_case.h"
#include "support/errors.h"
#include "train/toy_run.h"

namespace dflash {
namespace {

using testing::refuses;
using testing::toy_draft_spec;
using testing::toy_run_settings;
using testing::toy_target_config;

const BufferSpec* find(const Plan& plan, const std::string& name) {
    for (const PlacedBuffer& buffer : plan.buffers) {
        if (buffer.spec.name == name) return &buffer.spec;
    }
    return nullptr;
}

// Tables that are filled once may share memory with nothing.
TEST(RunPlan, RotaryTablesLiveThroughTheRun) {
    RunSettings settings = toy_run_settings();
    settings.eval_prompts = "prompts.jsonl";
    settings.eval_count = 1;
    const TargetConfig target = toy_target_config();
    const RunPlan run = make_run_plan(target, toy_draft_spec(target), settings);
    ASSERT_TRUE(run.decodes);
    int tables = 0;
    for (const PlacedBuffer& buffer : run.plan.buffers) {
        if (buffer.spec.name.find("rope") == std::string::npos) continue;
        ++tables;
        EXPECT_EQ(buffer.spec.lifetime.first, 0) << buffer.spec.name;
        EXPECT_EQ(buffer.spec.lifetime.last, static_cast<int>(run.plan.phases.size()) - 1) << buffer.spec.name;
    }
    EXPECT_EQ(tables, 8);  // target, drafter, and both while decoding; cos and sin
}

TEST(RunPlan, PhasesAndLifetimes) {
    const TargetConfig target = toy_target_config();
    const DraftSpec draft = toy_draft_spec(target);
    const RunPlan run = make_run_plan(target, draft, toy_run_settings());
    const std::vector<std::string> phases = {"target",     "context",    "forward 0",        "forward 1", "loss",
                                             "backward 1", "backward 0", "context backward", "optimizer", "evaluation"};
    EXPECT_EQ(run.plan.phases, phases);
    EXPECT_GE(run.plan.arena_bytes, run.plan.lower_bound_bytes());
    const int optimizer = run.phases.optimizer;
    const std::pair<const char*, int> births[] = {{"norm.weight", run.phases.backward[1]},
                                                  {"layers.1.mlp.up_proj.weight", run.phases.backward[1]},
                                                  {"layers.0.input_layernorm.weight", run.phases.backward[0]},
                                                  {"fc.weight", run.phases.context_backward}};
    for (const auto& [name, first] : births) {
        const BufferSpec* gradient = find(run.plan, std::string("draft.gradient.") + name);
        ASSERT_NE(gradient, nullptr) << name;
        EXPECT_EQ(gradient->lifetime.first, first) << name;
        EXPECT_EQ(gradient->lifetime.last, optimizer) << name;
    }
    EXPECT_EQ(find(run.plan, "target.features.taps")->lifetime.last, run.phases.context_backward);
}

TEST(RunPlan, AccumulatedGradientsLiveThroughTheStep) {
    const TargetConfig target = toy_target_config();
    RunSettings settings = toy_run_settings();
    settings.accumulate = 4;
    const RunPlan run = make_run_plan(target, toy_draft_spec(target), settings);
    EXPECT_EQ(find(run.plan, "draft.gradient.fc.weight")->lifetime.first, 0);
    EXPECT_EQ(find(run.plan, "draft.gradient.fc.weight")->lifetime.last, run.phases.optimizer);
}

TEST(RunPlan, EvaluationSharesMemoryWithActivations) {
    const TargetConfig target = toy_target_config();
    const DraftSpec draft = toy_draft_spec(target);
    RunSettings settings = toy_run_settings();
    settings.token_budget = 2048;
    settings.max_anchors = 256;
    settings.eval_new_tokens = 16;
    const std::size_t without = make_run_plan(target, draft, settings).plan.arena_bytes;
    settings.val_data = "held-out";
    const RunPlan with = make_run_plan(target, draft, settings);
    ASSERT_TRUE(with.decodes);
    std::size_t caches = 0;
    std::size_t more_weights = 0;
    for (const PlacedBuffer& buffer : with.plan.buffers) {
        const BufferSpec& spec = buffer.spec;
        const bool only_evaluation = spec.lifetime.first + 1 == static_cast<int>(with.plan.phases.size());
        if (only_evaluation) caches += spec.bytes();
        if (spec.category == Category::kTarget && spec.lifetime.first == 0) more_weights += spec.bytes();
    }
    ASSERT_GT(caches, 0U);
    EXPECT_LT(with.plan.arena_bytes, without + more_weights + caches / 4);
}

// No logits buffer grows with the tokens of a micro-batch: only the anchors' rows meet the head, a chunk at a time.
TEST(RunPlan, LossMemoryDependsOnTheChunkAlone) {
    TargetConfig target = toy_target_config();
    target.vocabulary = 50000;
    const DraftSpec draft = toy_draft_spec(target);
    RunSettings settings = toy_run_settings();
    settings.loss = "kl";
    const auto loss_bytes = [&] {
        const RunPlan run = make_run_plan(target, draft, settings);
        return run.plan.category_bytes(run.phases.loss, Category::kLossChunk);
    };
    settings.token_budget = 128;
    const std::size_t few = loss_bytes();
    EXPECT_GT(few, settings.loss_chunk * target.vocabulary * 2 * sizeof(float));  // both distributions are listed
    settings.token_budget = 4096;
    EXPECT_EQ(loss_bytes(), few);
}

TEST(RunPlan, StoredFeaturesNeedNoTargetLayers) {
    const TargetConfig target = toy_target_config();
    RunSettings settings = toy_run_settings();
    settings.features = "stored";
    settings.val_data = "stored-too";
    const RunPlan run = make_run_plan(target, toy_draft_spec(target), settings);
    EXPECT_FALSE(run.decodes);
    EXPECT_NE(find(run.plan, "target.features.taps"), nullptr);
    for (const PlacedBuffer& buffer : run.plan.buffers) {
        EXPECT_EQ(buffer.spec.name.find("target.layers."), std::string::npos) << buffer.spec.name;
        EXPECT_EQ(buffer.spec.name.find("target.forward."), std::string::npos) << buffer.spec.name;
    }
}

// On a GPU a micro-batch may arrive beside the optimizer, through two slots of page-locked memory a source.
TEST(RunPlan, StoredFeaturesArriveBesideTheOptimizer) {
    const TargetConfig target = toy_target_config();
    const DraftSpec draft = toy_draft_spec(target);
    RunSettings settings = toy_run_settings();
    settings.loss = "kl";
    settings.features = "stored";
    EXPECT_EQ(make_run_plan(target, draft, settings).pinned_bytes, 0U);
    settings.device = "cuda";
    const RunPlan training = make_run_plan(target, draft, settings);
    settings.val_data = "stored-too";
    const RunPlan both = make_run_plan(target, draft, settings);
    const BufferSpec* taps = find(training.plan, "target.features.taps");
    const BufferSpec* final_state = find(training.plan, "target.features.final_state");
    EXPECT_EQ(taps->lifetime.last, training.phases.optimizer);
    EXPECT_EQ(both.pinned_bytes - training.pinned_bytes, 2 * (taps->bytes() + final_state->bytes()));
    settings.features = "";
    EXPECT_LT(make_run_plan(target, draft, settings).pinned_bytes, training.pinned_bytes);
}

// Everything that binds to the arena finds its buffers: the planner and the stages use the same size functions.
using RunPlanOnDevice = testing::DeviceTest;
TEST_P(RunPlanOnDevice, RandomConfigsBindWithoutAMissingBuffer) {
    Philox rng(5, 5);
    const auto draw = [&](std::int64_t low, std::int64_t high) {
        return low + static_cast<std::int64_t>(rng.next_below(static_cast<std::uint64_t>(high - low + 1)));
    };
    for (int i = 0; i < 30; ++i) {
        const TargetConfig target = toy_target_config();
        const DraftSpec draft = toy_draft_spec(target, draw(1, 4), draw(2, 9));
        RunSettings settings = toy_run_settings();
        settings.token_budget = draw(2, 300);
        settings.max_anchors = draw(1, 40);
        settings.loss_chunk = draw(1, 100);
        settings.accumulate = draw(1, 2);
        settings.device = testing::device_type_name(device().type);
        settings.loss = draw(0, 1) == 0 ? "ce" : "kl";
        settings.recompute = std::array{"none", "attention", "layer"}[static_cast<std::size_t>(draw(0, 2))];
        if (draw(0, 1) == 0) settings.val_data = "held-out";
        const RunPlan run = make_run_plan(target, draft, settings);
        const Arena arena(run.device, run.plan);
        EXPECT_EQ(arena.bytes(), run.plan.arena_bytes);
        const TargetWeights weights = bind_target_weights(target, run.target_part, arena, run.target_layers);
        const DraftModel model = {draft, bind_draft_masters(draft, arena).weights, weights.embedding, weights.head};
        EXPECT_NO_THROW(DraftStep(draft, run.draft_step, arena));
        EXPECT_NO_THROW(TargetModel(target, weights, run.target_forward, arena));
        if (run.decodes) {
            EXPECT_NO_THROW(Generator(target, weights, &model, run.generator, arena));
        }
    }
}

DFLASH_ON_EACH_DEVICE(RunPlanOnDevice);

TEST(RunPlan, LargestSettingsFitAndOneMoreDoesNot) {
    const TargetConfig target = toy_target_config();
    const DraftSpec draft = toy_draft_spec(target);
    RunSettings settings = toy_run_settings();
    settings.token_budget = 512;
    settings.max_anchors = 512;
    const std::size_t memory = make_run_plan(target, draft, settings).plan.arena_bytes * 2 / 3;
    const auto bytes_with = [&](std::int64_t anchors, std::int64_t tokens) {
        RunSettings trial = settings;
        trial.max_anchors = anchors;
        trial.token_budget = tokens;
        return make_run_plan(target, draft, trial).plan.arena_bytes;
    };
    const std::int64_t anchors = largest_max_anchors(target, draft, settings, memory);
    ASSERT_GT(anchors, 0);
    EXPECT_LE(bytes_with(anchors, settings.token_budget), memory);
    EXPECT_GT(bytes_with(anchors + 1, settings.token_budget), memory);
    EXPECT_EQ(largest_max_anchors(target, draft, settings, 1000), 0);
    EXPECT_TRUE(refuses([&] { check_memory(target, draft, settings, make_run_plan(target, draft, settings), memory); },
                        {"--max-anchors " + std::to_string(anchors), "fits"}));
    EXPECT_TRUE(refuses([&] { check_memory(target, draft, settings, make_run_plan(target, draft, settings), 1000); }, {"lower both"}));
}

}  // namespace
}  // namespace dflash
