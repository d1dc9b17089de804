// SPDX-License-Identifier: MIT
// The program itself: killed while it saves, stopped by a signal, out of disk; and `plan` against what `train` takes.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/rng.h"
#include "cli/running_program.h"
#include "tensor/cuda_runtime.h"
#include "train/train_fixture.h"

namespace dflash {
namespace {

using nlohmann::json;
using testing::file_text;
using testing::lines_of;
using testing::Program;
using testing::ProgramResult;
using testing::refused;
using testing::run_program;
using testing::TemporaryFolder;

class TrainCommand : public ::testing::Test {
protected:
    void SetUp() override { target_ = testing::small_run("tiny-qwen3", folder_, "unused").target; }
    std::vector<std::string> train(const std::string& out, std::int64_t steps, const std::vector<std::string>& more = {}) const {
        std::vector<std::string> arguments = {"train", "--target", target_, "--data", folder_.file("data"), "--out", folder_.file(out)};
        for (const char* word : {"--token-budget", "320", "--max-anchors", "16", "--block-size", "6", "--draft-layers", "2", "--loss-chunk",
                                 "64", "--lr", "2e-3", "--accumulate", "2", "--eval-every", "0", "--save-every", "1", "--steps"}) {
            arguments.push_back(word);
        }
        arguments.push_back(std::to_string(steps));
        arguments.insert(arguments.end(), more.begin(), more.end());
        return arguments;
    }
    std::vector<std::string> resume(const std::string& out) const { return {"train", "--out", folder_.file(out), "--resume"}; }
    static void wait_until(const std::function<bool()>& ready) {
        for (int i = 0; i < 12000 && !ready(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        ASSERT_TRUE(ready());
    }
    // The steps of a run, without what a clock decides.
    std::vector<json> curve_of(const std::string& out) const {
        std::vector<json> curve;
        for (const std::string& text : lines_of(file_text(folder_.file(out + "/metrics.jsonl")))) {
            json line = json::parse(text);
            for (const char* key : {"step_ms", "tokens_per_second", "seconds_left"}) line.erase(key);
            curve.push_back(line);
        }
        return curve;
    }

    TemporaryFolder folder_;
    std::string target_;
};

TEST_F(TrainCommand, KilledAtAnyMomentItGoesOnFromACompleteCheckpoint) {
    constexpr std::int64_t kSteps = 16;
    const ProgramResult straight = run_program(train("straight", kSteps));
    ASSERT_EQ(straight.exit_code, 0) << straight.errors;
    Philox rng(11, 11);
    {
        Program program(train("killed", kSteps));
        wait_until([&] { return std::filesystem::exists(folder_.file("killed/draft/model.safetensors")); });
        program.kill();
        program.wait();
    }
    for (int i = 0; i < 10; ++i) {
        const std::size_t steps_before = curve_of("killed").size();
        Program program(resume("killed"));
        // Killed while it loads, and while it steps and saves.
        if (i % 3 != 0) wait_until([&] { return lines_of(file_text(folder_.file("killed/metrics.jsonl"))).size() != steps_before; });
        std::this_thread::sleep_for(std::chrono::microseconds(rng.next_below(20000)));
        program.kill();
        program.wait();
        ASSERT_TRUE(std::filesystem::exists(folder_.file("killed/draft/model.safetensors")));
    }
    const ProgramResult last = run_program(resume("killed"));
    EXPECT_EQ(last.exit_code, 0) << last.errors;
    EXPECT_EQ(curve_of("killed"), curve_of("straight"));
    const std::string state = "/checkpoints/step-16/optimizer.safetensors";
    EXPECT_EQ(file_text(folder_.file("killed") + state), file_text(folder_.file("straight") + state));
}

TEST_F(TrainCommand, ASignalFinishesTheStepSavesAndEndsWithOne) {
    for (const int signal : {SIGINT, SIGTERM}) {
        const std::string out = "stopped-" + std::to_string(signal);
        Program program(train(out, 100000));
        wait_until([&] { return lines_of(file_text(folder_.file(out + "/metrics.jsonl"))).size() >= 2; });
        program.kill(signal);
        const ProgramResult result = program.wait();
        EXPECT_EQ(result.exit_code, 1);
        EXPECT_NE(result.errors.find("--resume"), std::string::npos) << result.errors;
        const std::int64_t step = curve_of(out).back().at("step");
        EXPECT_TRUE(std::filesystem::exists(folder_.file(out + "/checkpoints/step-" + std::to_string(step))));
    }
}

TEST_F(TrainCommand, AFullDiskEndsWithOneAndKeepsTheOldCheckpoint) {
    // No file of the optimizer's size can be written any more: the write fails as on a full disk.
    const auto small_files = [] {
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit = {200000, 200000};
        setrlimit(RLIMIT_FSIZE, &limit);
    };
    const ProgramResult fresh = Program(train("full", 3), "", small_files).wait();
    EXPECT_EQ(fresh.exit_code, 1) << fresh.errors;
    EXPECT_NE(fresh.errors.find("cannot save step 1"), std::string::npos) << fresh.errors;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.file("full/checkpoints"))) ADD_FAILURE() << entry.path();

    ASSERT_EQ(run_program(train("long", 4)).exit_code, 0);
    std::filesystem::remove_all(folder_.file("long/checkpoints/step-4"));
    const ProgramResult resumed = Program(resume("long"), "", small_files).wait();
    EXPECT_EQ(resumed.exit_code, 1) << resumed.errors;
    EXPECT_TRUE(std::filesystem::exists(folder_.file("long/checkpoints/step-3/optimizer.safetensors")));
    EXPECT_EQ(run_program(resume("long")).exit_code, 0);
}

// Root may write everywhere, so the program then runs as somebody else.
TEST_F(TrainCommand, AReadOnlyFolderKeepsTheOldCheckpoint) {
    constexpr uid_t kNobody = 65534;
    const bool is_root = ::geteuid() == 0;
    ASSERT_EQ(run_program(train("run", 2)).exit_code, 0);
    std::filesystem::remove_all(folder_.file("run/checkpoints/step-2"));
    if (is_root) {
        ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
        for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.file("run"))) {
            ASSERT_EQ(::chown(entry.path().c_str(), kNobody, kNobody), 0);
        }
        ASSERT_EQ(::chown(folder_.file("run").c_str(), kNobody, kNobody), 0);
    }
    const std::string checkpoints = folder_.file("run/checkpoints");
    ASSERT_EQ(::chmod(checkpoints.c_str(), 0555), 0);
    const auto as_somebody = [is_root] {
        if (is_root && (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) ::_exit(125);
    };
    const ProgramResult resumed = Program(resume("run"), "", as_somebody).wait();
    ::chmod(checkpoints.c_str(), 0755);
    EXPECT_EQ(resumed.exit_code, 1) << resumed.errors;
    EXPECT_NE(resumed.errors.find("cannot save step 2"), std::string::npos) << resumed.errors;
    EXPECT_NE(resumed.errors.find("Permission denied"), std::string::npos) << resumed.errors;
    EXPECT_TRUE(std::filesystem::exists(checkpoints + "/step-1/optimizer.safetensors"));
    const ProgramResult again = run_program(resume("run"));
    EXPECT_EQ(again.exit_code, 0);
    EXPECT_NE(again.errors.find("resumed from step 1 of 2; the next step's rate is "), std::string::npos) << again.errors;
}

TEST_F(TrainCommand, PlanIsWhatTrainAllocates) {
    std::vector<std::string> arguments = train("run", 1);
    ASSERT_EQ(run_program(arguments).exit_code, 0);
    const std::string log = file_text(folder_.file("run/train.log"));
    arguments[0] = "plan";
    arguments.push_back("--json");
    const ProgramResult with_folder = run_program(arguments);
    ASSERT_EQ(with_folder.exit_code, 0) << with_folder.errors;
    const json plan = json::parse(with_folder.output);
    EXPECT_NE(log.find("(" + std::to_string(plan.at("arena_bytes").get<std::int64_t>()) + " bytes)"), std::string::npos) << log;
    arguments[2] = target_ + "/config.json";  // no weights, no tokenizer
    EXPECT_EQ(json::parse(run_program(arguments).output).at("arena_bytes"), plan.at("arena_bytes"));
    arguments.insert(arguments.end(), {"--device", "cpu", "--memory", "1GiB"});
    const json fits = json::parse(run_program(arguments).output);
    EXPECT_EQ(fits.at("arena_bytes"), plan.at("arena_bytes"));
    EXPECT_EQ(fits.at("memory_bytes"), std::int64_t{1} << 30);
    EXPECT_TRUE(fits.at("fits"));
    EXPECT_GT(fits.at("largest_token_budget"), 320);
}

// For a card that this machine need not have, from a config.json alone.
TEST_F(TrainCommand, PlanForAGpu) {
    const std::vector<std::string> arguments = {"plan", "--target", target_ + "/config.json", "--memory", "24GB", "--json"};
    const json plan = json::parse(run_program(arguments).output);
    EXPECT_EQ(plan.at("device"), "cuda");
    EXPECT_TRUE(plan.at("fits"));
    EXPECT_GT(plan.at("reserved_bytes"), 0);
    EXPECT_LT(plan.at("arena_bytes_with_recompute").at("layer"), plan.at("arena_bytes_with_recompute").at("attention"));
    EXPECT_LT(plan.at("arena_bytes_with_recompute").at("attention"), plan.at("arena_bytes_with_recompute").at("none"));
    EXPECT_EQ(plan.at("arena_bytes_with_recompute").at("none"), plan.at("arena_bytes"));

    const std::string picture = folder_.file("plan.svg");
    ASSERT_EQ(run_program({"plan", "--target", target_ + "/config.json", "--device", "cuda", "--svg", picture}).exit_code, 0);
    const std::string svg = file_text(picture);
    for (const char* part : {"<svg", "loss chunk", "moments", "backward 0, gradients", "</svg>"}) {
        EXPECT_NE(svg.find(part), std::string::npos) << part;
    }
    EXPECT_TRUE(refused(run_program({"plan", "--target", target_ + "/config.json", "--svg", folder_.file("absent/plan.svg")}), {"absent"}));
}

TEST_F(TrainCommand, HelpHasAnExampleAndBadUsageEndsWithTwo) {
    for (const char* command : {"train", "plan", "doctor"}) {
        const ProgramResult help = run_program({command, "--help"});
        EXPECT_EQ(help.exit_code, 0);
        EXPECT_NE(help.output.find("Example:"), std::string::npos);
    }
    EXPECT_TRUE(refused(run_program({"train"}), {"--out"}));
    EXPECT_TRUE(refused(run_program(train("cuda", 1, {"--device", "cuda"})), {"--device cuda"}));  // hidden, where there is one
    EXPECT_TRUE(refused(run_program(train("tight", 1, {"--memory", "2MB"})), {"2.0 MB"}));
    EXPECT_EQ(run_program({"train", "--no-such-flag"}).exit_code, 2);
    for (const char* out : {"cuda", "tight"}) EXPECT_FALSE(std::filesystem::exists(folder_.file(out)));
}

// `auto` takes the GPU; the plan is what is allocated, and what it made decodes there and on the CPU as the target alone would.
TEST_F(TrainCommand, OnCuda) {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    const auto run_on_gpu = [](const std::vector<std::string>& arguments) {
        return Program(arguments, "", [] { ::unsetenv("CUDA_VISIBLE_DEVICES"); }).wait();
    };
    const std::vector<std::string> arguments = train("run", 12);
    const ProgramResult trained = run_on_gpu(arguments);
    ASSERT_EQ(trained.exit_code, 0) << trained.errors;
    std::vector<std::string> planned = arguments;
    planned[0] = "plan";
    planned.insert(planned.end(), {"--device", "cuda", "--json"});
    const json plan = json::parse(run_program(planned).output);
    const std::string line = "(" + std::to_string(plan.at("arena_bytes").get<std::int64_t>()) + " bytes) on the GPU";
    EXPECT_NE(trained.errors.find(line), std::string::npos) << line << "\n" << trained.errors;
    for (const char* device : {"cuda", "cpu"}) {
        const ProgramResult eval = run_on_gpu({"eval", "--target", target_, "--draft", folder_.file("run/draft"), "--prompts",
                                               testing::fixture("data/chat_heldout.jsonl"), "--limit", "3", "--max-new-tokens", "16",
                                               "--device", device, "--json"});
        ASSERT_EQ(eval.exit_code, 0) << eval.errors;
        EXPECT_TRUE(json::parse(eval.output).at("identical_to_plain_greedy")) << device << "\n" << eval.output;
    }
}

TEST_F(TrainCommand, DefaultsArePrintedAtTheStart) {
    const ProgramResult result = run_program(train("run", 1));
    ASSERT_EQ(result.exit_code, 0);
    for (const char* line : {"--warmup-ratio 0.04 (default)", "--weighting dpace (default)", "--max-anchors 16\n", "--keep 2 (default)"}) {
        EXPECT_NE(result.errors.find(line), std::string::npos) << line << "\n" << result.errors;
    }
    EXPECT_NE(result.errors.find("resident peak"), std::string::npos);
    EXPECT_NE(result.output.find("/draft"), std::string::npos);
}

TEST_F(TrainCommand, BenchLossReportsItsParts) {
    const ProgramResult result = run_program({"bench", "loss", "--device", "cpu", "--rows", "48", "--hidden", "32", "--vocabulary", "500",
                                              "--loss-chunk", "20", "--repeats", "3", "--json"});
    ASSERT_EQ(result.exit_code, 0) << result.errors;
    const json report = json::parse(result.output);
    EXPECT_EQ(report.at("gflop"), 4.0 * 48 * 32 * 500 / 1e9);
    EXPECT_GT(report.at("loss_ms").at("median"), 0);
    EXPECT_GE(report.at("loss_ms").at("max"), report.at("loss_ms").at("min"));
    EXPECT_GE(report.at("planned_bytes"), 20 * (500 + 32) * 4);  // one chunk, not all rows
    EXPECT_LT(report.at("planned_bytes").get<double>(), 48 * 500 * 4 + 1e6);
    EXPECT_TRUE(refused(run_program({"bench", "loss", "--device", "cpu", "--rows", "0"}), {"--rows", "is 0"}));
}

TEST_F(TrainCommand, BenchStepReportsEveryPhase) {
    const std::string shape = folder_.write("shape.json", R"({"hidden": 64, "intermediate": 96, "heads": 2, "kv_heads": 1, "head_dim": 32,
        "layers": 2, "vocabulary": 200, "tokens": 48, "anchors": 4, "block_size": 4})");
    const ProgramResult result = run_program({"bench", "step", "--device", "cpu", "--shape", shape, "--repeats", "2", "--json"});
    ASSERT_EQ(result.exit_code, 0) << result.errors;
    const json bench = json::parse(result.output);
    double phases = 0;
    for (const char* phase : {"forward", "loss", "backward", "optimizer"}) {
        const json& ms = bench.at("phase_ms").at(phase);
        EXPECT_LE(ms.at("min").get<double>(), ms.at("median").get<double>());
        EXPECT_LE(ms.at("median").get<double>(), ms.at("max").get<double>());
        phases += ms.at("min").get<double>();
    }
    EXPECT_LE(phases, bench.at("step_ms").at("max").get<double>());
    EXPECT_GT(bench.at("product_gflop_per_s").get<double>(), 0.0);
    EXPECT_GT(bench.at("share_of_product").get<double>(), 0.0);
    EXPECT_TRUE(refused(run_program({"bench", "step", "--shape", "no-such-shape"}), {"no-such-shape", "cpu-1024"}));
}

}  // namespace
}  // namespace dflash
