// SPDX-License-Identifier: MIT
// The program itself: killed while it saves, stopped by a signal, out of disk; and `plan` against what `train` takes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/rng.h"
#include "io/atomic_file.h"
#include "support/temporary_folder.h"
#include "train/train_fixture.h"

namespace dflash {
namespace {

using nlohmann::json;
using testing::lines_of;
using testing::TemporaryFolder;

struct Outcome {
    int exit_code = -1;  // -1: ended by a signal
    int signal = 0;
    std::string out, err;
};

class Program : public ::testing::Test {
protected:
    void SetUp() override {
        const RunSettings settings = testing::small_run("tiny-qwen3", folder_, "unused");
        target_ = settings.target;
    }
    std::vector<std::string> train(const std::string& out, std::int64_t steps) const {
        return {"train",
                "--target",
                target_,
                "--data",
                folder_.file("data"),
                "--out",
                folder_.file(out),
                "--steps",
                std::to_string(steps),
                "--token-budget",
                "320",
                "--max-anchors",
                "16",
                "--block-size",
                "6",
                "--draft-layers",
                "2",
                "--loss-chunk",
                "64",
                "--lr",
                "2e-3",
                "--accumulate",
                "2",
                "--eval-every",
                "0",
                "--save-every",
                "1",
                "--threads",
                "1"};
    }
    std::vector<std::string> resume(const std::string& out) const { return {"train", "--out", folder_.file(out), "--resume"}; }

    // Starts the program; `in_child` runs before it takes over.
    pid_t start(const std::vector<std::string>& arguments, const std::function<void()>& in_child = {}) const {
        std::vector<std::string> words = {std::string(DFLASH_BINARY_DIR) + "/dflash"};
        words.insert(words.end(), arguments.begin(), arguments.end());
        std::vector<char*> argv;
        for (std::string& word : words) argv.push_back(word.data());
        argv.push_back(nullptr);
        const std::string out = folder_.file("stdout");
        const std::string err = folder_.file("stderr");
        const pid_t pid = fork();
        if (pid != 0) return pid;
        dup2(open(out.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644), STDOUT_FILENO);
        dup2(open(err.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644), STDERR_FILENO);
        if (in_child) in_child();
        execv(argv[0], argv.data());
        _exit(127);
    }
    Outcome wait_for(pid_t pid) const {
        int status = 0;
        waitpid(pid, &status, 0);
        Outcome outcome;
        if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
        if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
        outcome.out = read_file(folder_.file("stdout"));
        outcome.err = read_file(folder_.file("stderr"));
        return outcome;
    }
    Outcome run(const std::vector<std::string>& arguments, const std::function<void()>& in_child = {}) const {
        return wait_for(start(arguments, in_child));
    }
    void wait_until(const std::function<bool()>& ready) const {
        for (int i = 0; i < 6000 && !ready(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        ASSERT_TRUE(ready());
    }

    TemporaryFolder folder_;
    std::string target_;
};

std::vector<json> curve_of(const std::string& out) {
    std::vector<json> curve;
    for (const std::string& text : lines_of(out + "/metrics.jsonl")) {
        json line = json::parse(text);
        for (const char* key : {"step_ms", "tokens_per_second", "seconds_left"}) line.erase(key);
        curve.push_back(line);
    }
    return curve;
}

TEST_F(Program, KilledAtAnyMomentItGoesOnFromACompleteCheckpoint) {
    constexpr std::int64_t kSteps = 24;
    ASSERT_EQ(run(train("straight", kSteps)).exit_code, 0);
    Philox rng(11, 11);
    pid_t pid = start(train("killed", kSteps));
    wait_until([&] { return std::filesystem::exists(folder_.file("killed/checkpoints/step-1")); });
    for (int i = 0; i < 12; ++i) {
        std::this_thread::sleep_for(std::chrono::microseconds(rng.next_below(40000)));
        kill(pid, SIGKILL);
        wait_for(pid);
        pid = start(resume("killed"));
        // Killed early, while it loads, and late, while it steps and saves.
        if (i % 3 != 0) std::this_thread::sleep_for(std::chrono::milliseconds(150));
    }
    const Outcome last = wait_for(pid);
    EXPECT_EQ(last.exit_code, 0) << last.err;
    EXPECT_EQ(curve_of(folder_.file("killed")), curve_of(folder_.file("straight")));
    const std::string state = "/checkpoints/step-24/optimizer.safetensors";
    EXPECT_EQ(read_file(folder_.file("killed") + state), read_file(folder_.file("straight") + state));
}

TEST_F(Program, ASignalFinishesTheStepSavesAndEndsWithOne) {
    for (const int signal : {SIGINT, SIGTERM}) {
        const std::string out = "stopped-" + std::to_string(signal);
        const pid_t pid = start(train(out, 100000));
        wait_until([&] { return lines_of(folder_.file(out) + "/metrics.jsonl").size() >= 2; });
        kill(pid, signal);
        const Outcome outcome = wait_for(pid);
        EXPECT_EQ(outcome.exit_code, 1);
        EXPECT_NE(outcome.err.find("--resume"), std::string::npos) << outcome.err;
        const std::int64_t step = curve_of(folder_.file(out)).back().at("step");
        EXPECT_TRUE(std::filesystem::exists(folder_.file(out) + "/checkpoints/step-" + std::to_string(step)));
    }
}

TEST_F(Program, AFullDiskEndsWithOneAndKeepsTheOldCheckpoint) {
    // Files of the drafter's size cannot be written any more; as a full disk, the write fails.
    const auto small_files = [] {
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit = {200000, 200000};
        setrlimit(RLIMIT_FSIZE, &limit);
    };
    const Outcome fresh = run(train("full", 3), small_files);
    EXPECT_EQ(fresh.exit_code, 1) << fresh.err;
    EXPECT_NE(fresh.err.find("cannot save step 1"), std::string::npos) << fresh.err;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.file("full/checkpoints"))) ADD_FAILURE() << entry.path();

    ASSERT_EQ(run(train("long", 4)).exit_code, 0);
    std::filesystem::remove_all(folder_.file("long/checkpoints/step-4"));
    const Outcome resumed = run(resume("long"), small_files);
    EXPECT_EQ(resumed.exit_code, 1) << resumed.err;
    EXPECT_TRUE(std::filesystem::exists(folder_.file("long/checkpoints/step-3/optimizer.safetensors")));
    EXPECT_EQ(run(resume("long")).exit_code, 0);
}

TEST_F(Program, PlanIsWhatTrainAllocates) {
    std::vector<std::string> arguments = train("run", 1);
    ASSERT_EQ(run(arguments).exit_code, 0);
    const std::string log = read_file(folder_.file("run/train.log"));
    arguments[0] = "plan";
    arguments.push_back("--json");
    const Outcome with_folder = run(arguments);
    ASSERT_EQ(with_folder.exit_code, 0) << with_folder.err;
    const json plan = json::parse(with_folder.out);
    EXPECT_NE(log.find("(" + std::to_string(plan.at("arena_bytes").get<std::int64_t>()) + " bytes)"), std::string::npos) << log;
    arguments[2] = target_ + "/config.json";  // no weights, no tokenizer
    EXPECT_EQ(json::parse(run(arguments).out).at("arena_bytes"), plan.at("arena_bytes"));
    arguments.insert(arguments.end(), {"--memory", "1GiB"});
    const json fits = json::parse(run(arguments).out);
    EXPECT_EQ(fits.at("memory_bytes"), std::int64_t{1} << 30);
    EXPECT_TRUE(fits.at("fits"));
    EXPECT_GT(fits.at("largest_token_budget"), 320);
}

TEST_F(Program, HelpHasAnExampleAndBadUsageEndsWithTwo) {
    for (const char* command : {"train", "plan"}) {
        const Outcome help = run({command, "--help"});
        EXPECT_EQ(help.exit_code, 0);
        EXPECT_NE(help.out.find("Example:"), std::string::npos);
    }
    EXPECT_EQ(run({"train"}).exit_code, 2);
    EXPECT_EQ(run({"train", "--no-such-flag"}).exit_code, 2);
    std::vector<std::string> cuda = train("cuda", 1);
    cuda.insert(cuda.end(), {"--device", "cuda"});
    const Outcome refused = run(cuda);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_NE(refused.err.find("--device cuda"), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(folder_.file("cuda")));
}

TEST_F(Program, DefaultsArePrintedAtTheStart) {
    const Outcome outcome = run(train("run", 1));
    ASSERT_EQ(outcome.exit_code, 0);
    for (const char* line : {"--warmup-ratio 0.04 (default)", "--weighting dpace (default)", "--max-anchors 16\n", "--keep 2 (default)"}) {
        EXPECT_NE(outcome.err.find(line), std::string::npos) << line << "\n" << outcome.err;
    }
    EXPECT_NE(outcome.err.find("resident peak"), std::string::npos);
    EXPECT_NE(outcome.out.find("/draft"), std::string::npos);
}

}  // namespace
}  // namespace dflash
