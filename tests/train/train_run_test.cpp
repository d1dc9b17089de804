// SPDX-License-Identifier: MIT
// Whole runs on the bundled targets: the laws of resuming, of accumulation, of refusing.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "data/dataset.h"
#include "generate/decoding_setup.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "support/close.h"
#include "support/data.h"
#include "support/device_case.h"
#include "support/errors.h"
#include "target/features_writer.h"
#include "train/run_folder.h"
#include "train/train_fixture.h"
#include "train/trainer.h"

namespace dflash {
namespace {

using nlohmann::json;
using testing::file_lines;
using testing::refuses;
using testing::TemporaryFolder;
using testing::throws;

class TrainRun : public testing::DeviceTest {
protected:
    void SetUp() override {
        testing::DeviceTest::SetUp();
        set_log_level(LogLevel::kError);
    }
    void TearDown() override { set_log_level(LogLevel::kInfo); }
    RunSettings small_run(const std::string& target, const std::string& out) const {
        return testing::small_run(target, folder_, out, testing::device_type_name(GetParam()));
    }
    void expect_resume_equals(const std::string& target) const;
    void expect_short_resume_equals(const std::function<void(RunSettings&)>& change) const;
    TemporaryFolder folder_;
};

TrainHooks stop_at(std::int64_t step) {
    const auto done = std::make_shared<std::int64_t>(0);
    return {.on_step = [done](const StepMetrics& metrics) { *done = metrics.step; },
            .on_eval = {},
            .stop_requested = [done, step] { return *done >= step; }};
}

RunSettings resumed(const RunSettings& settings) {
    RunSettings asked;
    asked.out = settings.out;
    asked.resume = true;
    asked.given = {"out", "resume"};
    return asked;
}

// The steps of a run as the metrics file has them, without what a clock decides.
std::vector<json> curve_of(const std::string& out) {
    std::vector<json> curve;
    for (const std::string& text : file_lines(out + "/metrics.jsonl")) {
        json line = json::parse(text);
        for (const char* key : {"step_ms", "tokens_per_second", "seconds_left", "eval_ms"}) line.erase(key);
        curve.push_back(line);
    }
    return curve;
}

std::string last_state(const std::string& out, std::int64_t step) {
    return read_file(out + "/checkpoints/step-" + std::to_string(step) + "/optimizer.safetensors");
}

void TrainRun::expect_resume_equals(const std::string& target) const {
    RunSettings straight = small_run(target, "straight");
    straight.save_every = 0;
    ASSERT_EQ(run_training(straight, {}).step, 20);
    const std::vector<json> curve = curve_of(straight.out);
    ASSERT_EQ(curve.size(), 20U);
    EXPECT_LT(curve.back().at("loss").get<double>(), curve.front().at("loss").get<double>());
    for (const std::int64_t stop : {1, 7, 13}) {
        RunSettings settings = straight;
        settings.out = folder_.file("stopped-" + std::to_string(stop));
        const TrainSummary summary = run_training(settings, stop_at(stop));
        EXPECT_TRUE(summary.stopped);
        EXPECT_EQ(summary.step, stop);
        EXPECT_EQ(run_training(resumed(settings), {}).step, 20);
        EXPECT_EQ(curve_of(settings.out), curve) << "stopped at " << stop;
        EXPECT_EQ(last_state(settings.out, 20), last_state(straight.out, 20)) << "stopped at " << stop;
        EXPECT_EQ(read_file(settings.out + "/draft/model.safetensors"), read_file(straight.out + "/draft/model.safetensors"));
    }
}

TEST_P(TrainRun, ResumeEqualsTheStraightRunOnADenseTarget) { expect_resume_equals("tiny-qwen3"); }

TEST_P(TrainRun, ResumeEqualsTheStraightRunOnAHybridTarget) { expect_resume_equals("tiny-qwen3.5"); }

// Four steps, stopped after two.
void TrainRun::expect_short_resume_equals(const std::function<void(RunSettings&)>& change) const {
    RunSettings straight = small_run("tiny-qwen3", "straight");
    straight.steps = 4;
    straight.save_every = 0;
    change(straight);
    run_training(straight, {});
    RunSettings settings = straight;
    settings.out = folder_.file("stopped");
    run_training(settings, stop_at(2));
    run_training(resumed(settings), {});
    EXPECT_EQ(curve_of(settings.out), curve_of(straight.out));
    EXPECT_EQ(last_state(settings.out, 4), last_state(straight.out, 4));
}

TEST_P(TrainRun, ResumeEqualsTheStraightRunOnTwoThreads) {
    expect_short_resume_equals([](RunSettings& s) { s.threads = 2; });
}

TEST_P(TrainRun, ResumeEqualsTheStraightRunWithMuon) {
    expect_short_resume_equals([](RunSettings& s) { s.optimizer = "muon"; });
}

// Over epochs, stopped after each single step: epoch ends, odd cursors and the short last step are all among them.
TEST_P(TrainRun, StoppedAfterEveryStepOverThreeEpochs) {
    RunSettings straight = small_run("tiny-qwen3", "straight");
    testing::prepare_rows(straight.target, "regen_train.jsonl", 30, 7, folder_, "few");
    straight.data = folder_.file("few");
    straight.steps = 0;
    straight.epochs = 3;
    straight.accumulate = 2;
    straight.save_every = 0;
    const TrainSummary whole = run_training(straight, {});
    ASSERT_GT(whole.total_steps, 4);
    EXPECT_EQ(curve_of(straight.out).back().at("epoch"), 2);

    RunSettings settings = straight;
    settings.out = folder_.file("stopped");
    TrainSummary summary = run_training(settings, stop_at(1));
    for (std::int64_t step = 2; step <= whole.total_steps; ++step) {
        ASSERT_EQ(summary.step, step - 1);
        ASSERT_TRUE(summary.stopped);
        summary = run_training(resumed(settings), stop_at(step));
    }
    EXPECT_FALSE(summary.stopped);
    EXPECT_EQ(curve_of(settings.out), curve_of(straight.out));
    EXPECT_EQ(last_state(settings.out, whole.total_steps), last_state(straight.out, whole.total_steps));
    // A run that is complete stays so.
    EXPECT_EQ(run_training(resumed(settings), {}).step, whole.total_steps);
    EXPECT_EQ(curve_of(settings.out), curve_of(straight.out));
}

// Evaluation in between changes no bit of training, and its lines come back the same.
TEST_P(TrainRun, EvaluationLeavesTheCurveAlone) {
    RunSettings plain = small_run("tiny-qwen3.5", "plain");
    plain.steps = 6;
    plain.save_every = 0;
    run_training(plain, {});
    RunSettings evaluated = plain;
    evaluated.out = folder_.file("evaluated");
    evaluated.val_data = folder_.file("val-data");
    evaluated.eval_every = 2;
    std::vector<EvalMetrics> evaluations;
    run_training(evaluated, {.on_step = {}, .on_eval = [&](const EvalMetrics& m) { evaluations.push_back(m); }, .stop_requested = {}});
    ASSERT_EQ(evaluations.size(), 3U);
    for (const EvalMetrics& m : evaluations) {
        EXPECT_TRUE(m.has_validation);
        EXPECT_TRUE(m.has_decoding);
        EXPECT_GT(m.validation_loss, 0.0);
        EXPECT_EQ(m.prompts, 2);
        EXPECT_GE(m.acceptance_length, 1.0);
    }
    std::vector<json> steps;
    for (const json& line : curve_of(evaluated.out)) {
        if (line.at("kind") == "step") steps.push_back(line);
    }
    EXPECT_EQ(steps, curve_of(plain.out));
}

// The same documents and all their anchors as one micro-batch, or cut into several: the same gradient.
TEST_P(TrainRun, AccumulationGivesTheGradientOfTheWhole) {
    RunSettings whole = small_run("tiny-qwen3", "whole");
    testing::prepare_rows(whole.target, "regen_train.jsonl", 40, 8, folder_, "eight", 96);
    whole.data = folder_.file("eight");
    whole.steps = 0;
    whole.epochs = 1;
    whole.token_budget = 8 * 96;
    whole.max_anchors = 8 * 96;
    whole.accumulate = 100;  // an epoch is one step
    whole.max_grad_norm = 0;
    const auto first_moment = [&](const RunSettings& settings) {
        EXPECT_EQ(run_training(settings, {}).step, 1);
        const SafetensorsFile file(settings.out + "/checkpoints/step-1/optimizer.safetensors");
        std::map<std::string, std::vector<float>> moments;
        for (const auto& [name, entry] : file.entries()) {
            if (name.size() < 2 || name.substr(name.size() - 2) != ".m") continue;
            const auto* values = reinterpret_cast<const float*>(entry.data);
            moments[name] = {values, values + entry.elements()};
        }
        return moments;
    };
    const auto expected = first_moment(whole);
    ASSERT_FALSE(expected.empty());
    for (const std::int64_t budget : {4 * 96, 2 * 96, 96}) {
        RunSettings cut = whole;
        cut.out = folder_.file("cut-" + std::to_string(budget));
        cut.token_budget = budget;
        cut.loss_chunk = budget / 3;
        const auto got = first_moment(cut);
        for (const auto& [name, values] : expected) {
            EXPECT_TRUE(
                testing::close(std::span<const float>(got.at(name)), std::span<const float>(values), tolerance(testing::kGradientF32)))
                << name;
        }
    }
}

TEST_P(TrainRun, RecomputationChangesNoBit) {
    RunSettings kept = small_run("tiny-qwen3", "kept");
    kept.steps = 3;
    kept.save_every = 0;
    run_training(kept, {});
    for (const char* recompute : {"attention", "layer"}) {
        RunSettings again = kept;
        again.out = folder_.file(recompute);
        again.recompute = recompute;
        run_training(again, {});
        EXPECT_EQ(curve_of(again.out), curve_of(kept.out));
        EXPECT_EQ(last_state(again.out, 3), last_state(kept.out, 3));
    }
}

// Features from a folder instead of the target: only embedding, head and final norm are loaded, and the run is the same.
TEST_P(TrainRun, StoredFeaturesGiveTheCurveOfTheLiveTarget) {
    RunSettings live = small_run("tiny-qwen3.5", "live");
    live.steps = 4;
    live.save_every = 0;
    live.loss = "kl";
    live.val_data = folder_.file("val-data");
    live.eval_count = 0;
    run_training(live, {});

    RunSettings stored = live;
    stored.out = folder_.file("stored");
    for (const char* name : {"data", "val-data"}) {
        const auto copy_data = [&](const std::string& to) {
            std::filesystem::copy(folder_.file(name), to, std::filesystem::copy_options::recursive);
        };
        const FeaturesOutput output = {.target = live.target,
                                       .out = folder_.file(std::string("features-") + name),
                                       .request = {.layers = {1, 2, 3, 4, 5, 6}, .want_final = true, .want_logits = false},
                                       .device = device()};
        write_features_folder(copy_data, output, [](const Dataset&) { return [](std::int64_t, std::int64_t) {}; });
    }
    stored.data = "";
    stored.features = folder_.file("features-data");
    stored.val_data = folder_.file("features-val-data");
    const TrainSummary summary = run_training(stored, {});
    EXPECT_EQ(summary.step, 4);
    const std::vector<json> expected = curve_of(live.out);
    const std::vector<json> got = curve_of(stored.out);
    ASSERT_EQ(got.size(), expected.size());
    std::vector<double> live_loss, stored_loss;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const char* key = got[i].at("kind") == "eval" ? "validation_loss" : "loss";
        live_loss.push_back(expected[i].at(key).get<double>());
        stored_loss.push_back(got[i].at(key).get<double>());
    }
    ASSERT_EQ(live_loss.size(), 5U);
    EXPECT_TRUE(testing::close(std::span<const double>(stored_loss), std::span<const double>(live_loss), tolerance(testing::kModelF32)));

    stored.out = folder_.file("other");
    stored.target = testing::fixture("tiny-qwen3");
    EXPECT_TRUE(refuses([&] { run_training(stored, {}); }, {}));
}

TEST_P(TrainRun, KeepsTheNewestCheckpointsAndTheLatestDrafter) {
    RunSettings settings = small_run("tiny-qwen3", "run");
    settings.steps = 5;
    settings.keep = 2;
    run_training(settings, {});
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(settings.out + "/checkpoints")) {
        names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    EXPECT_EQ(names, (std::vector<std::string>{"step-4", "step-5"}));
    EXPECT_EQ(read_file(settings.out + "/draft/model.safetensors"),
              read_file(settings.out + "/checkpoints/step-5/draft/model.safetensors"));
    const json training = json::parse(read_file(settings.out + "/draft/training.json"));
    EXPECT_EQ(training.at("alignment_shift"), 0);
    EXPECT_EQ(training.at("settings").at("lr"), settings.lr);
    EXPECT_EQ(training.at("step"), 5);
}

TEST_P(TrainRun, BrokenCheckpointsArePassedOver) {
    set_log_level(LogLevel::kWarning);  // what is passed over is a warning
    RunSettings settings = small_run("tiny-qwen3", "run");
    settings.steps = 6;
    run_training(settings, stop_at(4));
    const std::string newest = settings.out + "/checkpoints/step-4/optimizer.safetensors";
    const std::string content = read_file(newest);
    testing::TemporaryFolder copy;
    std::filesystem::copy(settings.out, copy.file("run"), std::filesystem::copy_options::recursive);
    {
        std::ofstream cut(newest, std::ios::binary | std::ios::trunc);
        cut << content.substr(0, content.size() / 2);
    }
    std::filesystem::create_directories(settings.out + "/checkpoints/.step-5.partial/draft");
    EXPECT_EQ(run_training(resumed(settings), {}).step, 6);
    RunSettings sound = settings;
    sound.out = copy.file("run");
    run_training(resumed(sound), {});
    EXPECT_EQ(curve_of(settings.out), curve_of(sound.out));
    EXPECT_EQ(last_state(settings.out, 6), last_state(sound.out, 6));
    EXPECT_FALSE(std::filesystem::exists(settings.out + "/checkpoints/.step-5.partial"));
    EXPECT_NE(read_file(settings.out + "/train.log").find("skipped step-4"), std::string::npos);
}

TEST_P(TrainRun, ResumeRefusesWhatChanged) {
    RunSettings settings = small_run("tiny-qwen3", "run");
    settings.steps = 3;
    run_training(settings, stop_at(1));
    RunSettings asked = resumed(settings);
    asked.given.insert("lr");
    asked.lr = 1e-5;
    EXPECT_TRUE(refuses([&] { run_training(asked, {}); }, {"--lr"}));
    asked = resumed(settings);
    asked.given.insert("threads");
    asked.threads = 2;
    EXPECT_TRUE(refuses([&] { run_training(asked, {}); }, {"--threads"}));
    asked = resumed(settings);
    asked.given.insert("data");
    asked.data = folder_.file("val-data");
    EXPECT_TRUE(refuses([&] { run_training(asked, {}); }, {"the data set"}));
    asked = resumed(settings);
    asked.out = folder_.file("nowhere");
    EXPECT_TRUE(refuses([&] { run_training(asked, {}); }, {"holds no run"}));
    EXPECT_FALSE(std::filesystem::exists(asked.out));
    EXPECT_TRUE(refuses([&] { run_training(settings, {}); }, {"holds a run already", "--resume"}));
    const RunFolder locked(settings.out);
    EXPECT_TRUE(refuses([&] { run_training(resumed(settings), {}); }, {"another process trains"}));
}

TEST_P(TrainRun, InitFromContinuesADrafterAndRefusesAnotherGeometry) {
    RunSettings first = small_run("tiny-qwen3", "first");
    first.steps = 8;
    first.save_every = 0;
    run_training(first, {});
    RunSettings second = first;
    second.out = folder_.file("second");
    second.init_from = first.out + "/draft";
    second.steps = 1;
    run_training(second, {});
    const double started = curve_of(second.out).front().at("loss").get<double>();
    EXPECT_LT(started, curve_of(first.out).front().at("loss").get<double>() - 0.5);

    // Once the run has saved its own drafter, the one that it began with may go.
    std::filesystem::rename(second.init_from, folder_.file("elsewhere"));
    RunSettings again = second;
    again.resume = true;
    again.steps = 1;
    EXPECT_NO_THROW(run_training(again, {}));
    std::filesystem::rename(folder_.file("elsewhere"), second.init_from);

    second.out = folder_.file("third");
    second.given = {"block-size"};
    second.block_size = 5;
    EXPECT_TRUE(refuses([&] { run_training(second, {}); }, {"--block-size 5", "has 6"}));
    second.given = {"mask-token-id"};
    second.mask_token_id = 17;
    EXPECT_TRUE(refuses([&] { run_training(second, {}); }, {"--mask-token-id 17"}));
    second.given = {};
    second.target = testing::fixture("tiny-qwen3.5");
    EXPECT_TRUE(refuses([&] { run_training(second, {}); }, {}));
    EXPECT_FALSE(std::filesystem::exists(second.out));
}

// The acceptance length that training measures is what `dflash eval` finds with the saved drafter. (At a rate of 0 the weights stay what was saved
// in bf16 before, so that both decode with the same bits.)
TEST_P(TrainRun, AcceptanceMeasuredInTrainingIsThatOfDecoding) {
    for (const char* name : {"tiny-qwen3", "tiny-qwen3.5"}) {
        SCOPED_TRACE(name);
        const TemporaryFolder folder;
        RunSettings first = testing::small_run(name, folder, "first", testing::device_type_name(GetParam()));
        first.lr = 5e-3;
        first.save_every = 0;
        run_training(first, {});
        RunSettings frozen = first;
        frozen.out = folder.file("frozen");
        frozen.init_from = first.out + "/draft";
        frozen.steps = 1;
        frozen.lr = 0;
        frozen.val_data = folder.file("val-data");
        frozen.eval_count = 4;
        frozen.eval_new_tokens = 24;
        frozen.eval_every = 1;
        EvalMetrics measured;
        run_training(frozen, {.on_step = {}, .on_eval = [&](const EvalMetrics& metrics) { measured = metrics; }, .stop_requested = {}});
        ASSERT_TRUE(measured.has_decoding);
        ASSERT_EQ(measured.prompts, 4);

        const Dataset prompts(frozen.val_data);
        DecodingOptions options;
        options.target = frozen.target;
        options.draft = frozen.out + "/draft";
        options.generator = {.max_tokens = 160, .max_prompt = 128, .device = device()};
        options.device = device();
        DecodingSetup setup(options);
        std::int64_t committed = 0, steps = 0;
        for (std::int64_t row = 0; row < 4; ++row) {
            const DocumentView document = prompts.document(row);
            const auto answer = std::find(document.loss_mask.begin(), document.loss_mask.end(), std::uint8_t{1});
            const std::vector<std::int32_t> prompt(document.ids.begin(), document.ids.begin() + (answer - document.loss_mask.begin()));
            GenerateSettings settings;
            settings.max_new_tokens = frozen.eval_new_tokens;
            settings.end_tokens = setup.target().end_tokens;
            const GenerateResult result = setup.generator().generate(setup.context(), prompt, settings, /*use_draft=*/true);
            committed += result.verified_tokens;
            steps += result.verify_steps;
        }
        EXPECT_EQ(measured.verify_steps, steps);
        EXPECT_DOUBLE_EQ(measured.acceptance_length, static_cast<double>(committed) / static_cast<double>(steps));
        EXPECT_GT(measured.acceptance_length, 1.0);
    }
}

TEST_P(TrainRun, LossThatIsNotFiniteStopsBeforeTheUpdate) {
    RunSettings settings = small_run("tiny-qwen3", "run");
    settings.steps = 2;
    settings.save_every = 0;
    run_training(settings, {});
    const std::string weights = settings.out + "/draft/model.safetensors";
    std::string bytes = read_file(weights);
    for (std::size_t i = bytes.size() - 4096; i < bytes.size(); ++i) bytes[i] = static_cast<char>(0xff);  // bf16 NaN
    write_file_atomically(weights, bytes);
    RunSettings next = settings;
    next.out = folder_.file("next");
    next.init_from = settings.out + "/draft";
    EXPECT_TRUE(throws(ErrorKind::kFailed, [&] { run_training(next, {}); }, {"step 1", "micro-batch"}));
    EXPECT_FALSE(std::filesystem::exists(next.out + "/draft"));
}

TEST_P(TrainRun, RefusesBeforeTheRunFolderIsMade) {
    const RunSettings good = small_run("tiny-qwen3", "run");
    const auto refused = [&](const std::function<void(RunSettings&)>& change, const std::vector<std::string>& fragments) {
        RunSettings settings = good;
        change(settings);
        const ::testing::AssertionResult result = refuses([&] { run_training(settings, {}); }, fragments);
        if (std::filesystem::exists(good.out)) return ::testing::AssertionFailure() << "the run folder was made";
        return result;
    };
    EXPECT_TRUE(refused([](auto& s) { s.target = ""; }, {"--target"}));
    EXPECT_TRUE(refused([](auto& s) { s.target = "/nowhere"; }, {"--target", "/nowhere"}));
    EXPECT_TRUE(refused([](auto& s) { s.data = ""; }, {"--data"}));
    EXPECT_TRUE(refused([](auto& s) { s.memory = "1MB"; }, {"the run needs", "1.0 MB"}));
    EXPECT_TRUE(refused([](auto& s) { s.mask_token_id = 4094; }, {"4094"}));                // an end token
    EXPECT_TRUE(refused([](auto& s) { s.mask_token_id = 1000000; }, {"1000000"}));          // outside the vocabulary
    EXPECT_TRUE(refused([](auto& s) { s.mask_token_id = 4093; }, {"4093", "mask token"}));  // occurs in the data
    EXPECT_TRUE(refused([](auto& s) { s.given = {"template"}; }, {"--template", "prepare"}));
    EXPECT_TRUE(refused([](auto& s) { s.target_layer_ids = {1, 99}; }, {"99"}));
}

TEST_P(TrainRun, TwoRunsGiveTheSameBits) {
    RunSettings settings = small_run("tiny-qwen3.5", "one");
    settings.save_every = 0;
    run_training(settings, {});
    const std::string one = settings.out;
    settings.out = folder_.file("other");
    run_training(settings, {});
    EXPECT_EQ(curve_of(settings.out), curve_of(one));
    EXPECT_EQ(last_state(settings.out, 20), last_state(one, 20));
}

// Metrics that are read less often, as a GPU's default is, change no bit of training; the first and the last step are always reported.
TEST_P(TrainRun, ReadingMetricsLessOftenChangesNoBit) {
    RunSettings settings = small_run("tiny-qwen3", "each");
    settings.save_every = 0;
    run_training(settings, {});
    const std::vector<json> each = curve_of(settings.out);
    const std::string state = last_state(settings.out, 20);
    settings.out = folder_.file("seventh");
    settings.log_every = 7;
    run_training(settings, stop_at(9));
    run_training(resumed(settings), {});
    EXPECT_EQ(last_state(settings.out, 20), state);
    const std::vector<json> seventh = curve_of(settings.out);
    EXPECT_EQ(seventh.front(), each.front());
    EXPECT_EQ(seventh.back(), each.back());
}

DFLASH_ON_EACH_DEVICE(TrainRun);

// One seed on the CPU (f32) and on a GPU (bf16, both dtypes of gradients): the same data, anchors and first weights, so the same losses within
// bf16's noise.
TEST(TrainAcrossDevices, TheFirstLossesAgree) {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    set_log_level(LogLevel::kError);
    const TemporaryFolder folder;
    const auto losses = [&](const char* device, const char* grad_dtype) {
        RunSettings settings = testing::small_run("tiny-qwen3.5", folder, std::string(device) + grad_dtype, device);
        settings.save_every = 0;
        settings.grad_dtype = grad_dtype;
        run_training(settings, {});
        std::vector<double> values;
        for (const json& line : curve_of(settings.out)) values.push_back(line.at("loss").get<double>());
        return values;
    };
    const std::vector<double> cpu = losses("cpu", "auto");
    ASSERT_EQ(cpu.size(), 20U);
    for (const char* grad_dtype : {"f32", "bf16"}) {
        const std::vector<double> gpu = losses("cuda", grad_dtype);
        EXPECT_TRUE(testing::close(std::span<const double>(gpu), std::span<const double>(cpu), testing::kOpBf16)) << grad_dtype;
    }
    set_log_level(LogLevel::kInfo);
}

}  // namespace
}  // namespace dflash
