// SPDX-License-Identifier: MIT
// `dflash export` as a user runs it.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "draft/draft_weights.h"
#include "draft/provenance.h"
#include "draft_case.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/target_config.h"

namespace dflash::testing {
namespace {

class ExportCommand : public ::testing::Test {
protected:
    ExportCommand()
        : target_folder_(std::string(DFLASH_FIXTURES) + "/tiny-qwen3"),
          target_(read_target_config(target_folder_)),
          folder_(::testing::TempDir() + "export_test_" + ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
        std::filesystem::remove_all(folder_);
        std::filesystem::create_directories(folder_);
    }
    ~ExportCommand() override { std::filesystem::remove_all(folder_); }

    std::string path(const std::string& name) const { return folder_ + "/" + name; }
    // A small untrained drafter for the fixture's target, in f32 so that nothing is rounded yet.
    void save(std::int64_t window) {
        DraftGeometryFlags flags;
        flags.draft_layers = 2;
        flags.block_size = 4;
        flags.sliding_window = window;
        spec_ = make_draft_spec(target_, flags, 4093);
        arena_ = std::make_unique<Arena>(Device{}, make_plan({"all"}, draft_tensor_buffers(spec_, "w", Category::kWeights, {0, 0})));
        weights_ = bind_draft_tensors(spec_, "w", *arena_);
        initialise_draft({weights_, {}}, 4);
        DraftProvenance provenance;
        provenance.training["template"] = "qwen3";
        HostReader reader(Stream{});
        save_draft(path("draft"), spec_, target_, weights_, provenance, reader, SavedAs::kF32);
    }
    int run(const std::string& arguments) {
        const std::string command = std::string(DFLASH_BINARY_DIR) + "/dflash export " + arguments + " > " + path("log") + " 2>&1";
        const int status = std::system(command.c_str());
        std::stringstream text;
        text << std::ifstream(path("log")).rdbuf();
        log_ = text.str();
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }

    std::string target_folder_;
    TargetConfig target_;
    std::string folder_;
    DraftSpec spec_;
    std::unique_ptr<Arena> arena_;
    DraftTensors weights_;
    std::string log_;
};

TEST_F(ExportCommand, DflashLayout) {
    save(16);
    ASSERT_EQ(run("--draft " + path("draft") + " --out " + path("out") + " --dtype f32"), 0) << log_;
    EXPECT_EQ(read_draft_spec(path("out")), spec_);
    EXPECT_EQ(read_json_file(path("out/config.json")), read_json_file(path("draft/config.json")));
    EXPECT_EQ(read_draft_provenance(path("out")).training["template"], "qwen3");
    const std::vector<std::vector<double>> before = tensor_values(Context(), weights_);
    initialise_draft({weights_, {}}, 5);
    load_draft(path("out"), spec_, {weights_, {}});
    EXPECT_EQ(tensor_values(Context(), weights_), before);
    EXPECT_EQ(run("--draft " + path("draft") + " --out " + path("out")), 2) << "an existing folder is left alone";
    ASSERT_EQ(run("--draft " + path("draft") + " --out " + path("bf16") + " --target " + target_folder_), 0) << log_;
    EXPECT_EQ(SafetensorsFile(path("bf16/model.safetensors")).find("fc.weight")->dtype, "BF16");
}

TEST_F(ExportCommand, SpeculatorsLayoutAndBack) {
    save(0);
    EXPECT_EQ(run("--draft " + path("draft") + " --out " + path("out") + " --format speculators"), 2);
    EXPECT_NE(log_.find("--target"), std::string::npos) << log_;
    ASSERT_EQ(run("--draft " + path("draft") + " --out " + path("out") + " --format speculators --dtype f32 --target " + target_folder_), 0)
        << log_;
    EXPECT_NE(SafetensorsFile(path("out/model.safetensors")).find("embed_tokens.weight"), nullptr);
    ASSERT_EQ(run("--draft " + path("out") + " --out " + path("back") + " --dtype f32 --target " + target_folder_), 0) << log_;
    EXPECT_EQ(read_draft_spec(path("back")), spec_);
    const std::vector<std::vector<double>> before = tensor_values(Context(), weights_);
    initialise_draft({weights_, {}}, 5);
    load_draft(path("back"), spec_, {weights_, {}});
    EXPECT_EQ(tensor_values(Context(), weights_), before);
}

TEST_F(ExportCommand, RefusesMixedLayersInSpeculators) {
    save(16);
    EXPECT_EQ(run("--draft " + path("draft") + " --out " + path("out") + " --format speculators --target " + target_folder_), 2);
    EXPECT_NE(log_.find("different attention kinds"), std::string::npos) << log_;
    EXPECT_FALSE(std::filesystem::exists(path("out")));
    EXPECT_FALSE(std::filesystem::exists(path("out.partial")));
}

TEST_F(ExportCommand, RefusesAnotherTargetsDrafter) {
    save(0);
    const std::string other = std::string(DFLASH_FIXTURES) + "/tiny-qwen3.5";
    EXPECT_EQ(run("--draft " + path("draft") + " --out " + path("out") + " --target " + other), 2);
    EXPECT_NE(log_.find("layers"), std::string::npos) << log_;
}

}  // namespace
}  // namespace dflash::testing
