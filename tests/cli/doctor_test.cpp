// SPDX-License-Identifier: MIT
// `dflash doctor` names what this machine has and the kernel that each kind of draft layer runs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "cli/running_program.h"
#include "draft/draft_spec.h"
#include "io/json.h"
#include "io/tile_cache.h"

namespace dflash {
namespace {

using testing::ProgramResult;
using testing::refused;
using testing::run_program;
using testing::TemporaryFolder;

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
}

TEST(Doctor, NamesTheAttentionKernelOfEveryKindOfLayer) {
    const ProgramResult result = run_program({"doctor"});
    ASSERT_EQ(result.exit_code, 0) << result.errors;
    expect_parts(result.output,
                 {"processor", "memory", "CUDA", "anchor attention on the ", "shape qwen3.6-27b: 32/8 heads of 128, blocks of 16",
                  "4 layers (window 2048, causal blocks): fused", "1 layer (full): fused", "anchor_attention_backward"});
}

TEST(Doctor, NamesTheKernelsOfADrafter) {
    const TargetConfig target = read_target_config(std::string(DFLASH_FIXTURES) + "/tiny-qwen3");
    DraftGeometryFlags flags;
    flags.block_size = 4;
    flags.draft_layers = 2;
    flags.no_sliding_window = true;
    flags.mask_token_id = 5;
    const DraftSpec spec = make_draft_spec(target, flags, -1);
    TemporaryFolder folder;
    const std::string config = folder.write("config.json", draft_spec_to_config_json(spec, target).dump());
    const ProgramResult result = run_program({"doctor", "--draft", config});
    ASSERT_EQ(result.exit_code, 0) << result.errors;
    expect_parts(result.output, {config, "blocks of 4", "2 layers (full): fused"});
    EXPECT_EQ(result.output.find("shape qwen3.6-27b"), std::string::npos);
    EXPECT_TRUE(refused(run_program({"doctor", "--draft", folder.file("absent")}), {"absent"}));
}

TEST(Doctor, TellsTheStateOfTheTileCache) {
    TemporaryFolder folder;
    ::setenv("DFLASH_CACHE_DIR", folder.file("cache").c_str(), 1);
    expect_parts(run_program({"doctor"}).output, {folder.file("cache") + " (not there yet"});
    ASSERT_TRUE(TileCache(folder.file("cache")).store("key", "value"));
    expect_parts(run_program({"doctor"}).output, {folder.file("cache") + ": 1 choices of `dflash tune`, 0 bad files"});
    ::unsetenv("DFLASH_CACHE_DIR");
}

TEST(Doctor, ATrainingRunNamesThemAtItsStartAndRecordsItsChoices) {
    const std::string fixtures = DFLASH_FIXTURES;
    TemporaryFolder folder;
    const ProgramResult result = run_program({"train",
                                              "--device",
                                              "cpu",
                                              "--target",
                                              fixtures + "/tiny-qwen3",
                                              "--data",
                                              fixtures + "/data/regen_train.jsonl",
                                              "--out",
                                              folder.file("run"),
                                              "--steps",
                                              "1",
                                              "--max-anchors",
                                              "8",
                                              "--token-budget",
                                              "256",
                                              "--draft-layers",
                                              "1",
                                              "--block-size",
                                              "4",
                                              "--eval-new-tokens",
                                              "4",
                                              "--threads",
                                              "1"});
    ASSERT_EQ(result.exit_code, 0) << result.errors;
    expect_parts(result.errors, {"[attention] 1 layer (full): fused"});
    EXPECT_EQ(read_json_file(folder.file("run/config.json")).at("attention"), Json::object()) << "the CPU has nothing to choose";
}

}  // namespace
}  // namespace dflash
