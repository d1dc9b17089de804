// SPDX-License-Identifier: MIT
// `dflash features` from outside: the tensors it names, its refusals, and a training run from the folder it makes.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "io/safetensors.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace dflash {
namespace {

using testing::run_dflash;
using testing::TemporaryFolder;

const std::string kTarget = DFLASH_FIXTURES "/tiny-qwen3.5";

// Two chats and a row with ready ids.
const std::string kRows =
    R"({"id": "chat-a", "messages": [{"role": "user", "content": "Write f(x)."}, {"role": "assistant", "content": "def f(x):\n    return x"}]})"
    "\n"
    R"({"id": "chat-b", "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello to you, and good day."}]})"
    "\n"
    R"({"id": "ready", "input_ids": [5, 6, 7, 8, 9, 10, 11, 12, 13, 14], "loss_mask": [0, 0, 1, 1, 1, 1, 1, 1, 1, 1]})"
    "\n";

class FeaturesCommand : public ::testing::Test {
protected:
    std::string command(const std::string& rest) const { return "features --target " + kTarget + " --data " + rows + " " + rest; }
    TemporaryFolder folder;
    const std::string rows = folder.write("rows.jsonl", kRows);
};

TEST_F(FeaturesCommand, WritesTheNamedTensors) {
    const std::string out = folder.file("f.safetensors");
    const auto result = run_dflash(command("--layers=-1,3,0 --final --logits --dtype bf16 --out " + out));
    ASSERT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_NE(result.output.find("written to " + out), std::string::npos) << result.output;
    EXPECT_NE(result.errors.find("3/3 rows"), std::string::npos) << result.errors;
    const SafetensorsFile file(out);
    EXPECT_EQ(file.entries().size(), 3U * 8U);
    for (const std::string id : {"chat-a", "chat-b", "ready"}) {
        const SafetensorsEntry* ids = file.find(id + ".input_ids");
        ASSERT_NE(ids, nullptr) << id;
        for (const char* name : {".hidden.0", ".hidden.1", ".hidden.4", ".final"}) {
            const SafetensorsEntry* entry = file.find(id + name);
            ASSERT_NE(entry, nullptr) << id << name;
            EXPECT_EQ(entry->dtype, "BF16");
            EXPECT_EQ(entry->shape, (std::vector<std::int64_t>{ids->shape[0], 256}));
        }
        for (const char* name : {".loss_mask", ".logsumexp", ".argmax"}) {
            const SafetensorsEntry* entry = file.find(id + name);
            ASSERT_NE(entry, nullptr) << id << name;
            EXPECT_EQ(entry->shape, ids->shape);
        }
    }
    EXPECT_EQ(file.find("ready.input_ids")->shape[0], 10);
}

TEST_F(FeaturesCommand, RefusalsNameTheFaultAndLeaveNothing) {
    const std::string out = folder.file("f.safetensors");
    const auto refused = [&](const std::string& rest, const std::string& fragment) {
        const auto result = run_dflash(command(rest));
        EXPECT_EQ(result.exit_code, 2) << rest;
        EXPECT_NE(result.errors.find(fragment), std::string::npos) << result.errors;
        EXPECT_EQ(folder.num_files(), 1U) << rest;
    };
    refused("--layers 0,8 --out " + out, "layer 8");
    refused("--out " + out, "nothing is asked for");
    refused("--layers 0 --logits --out " + folder.file("features"), "--logits");
    folder.write("rows.jsonl", kRows + "{\"id\": 4}\n");
    refused("--layers 0 --out " + out, "line 4");
}

TEST_F(FeaturesCommand, AFolderTrainsADrafter) {
    const std::string out = folder.file("features"), run = folder.file("run");
    const auto made = run_dflash(command("--out " + out));
    ASSERT_EQ(made.exit_code, 0) << made.errors;
    ASSERT_EQ(run_dflash(command("--out " + out)).exit_code, 0) << "made again over itself";
    const auto trained = run_dflash("train --target " + kTarget + " --features " + out + " --out " + run +
                                    " --steps 2 --token-budget 64 --max-anchors 8 --block-size 4 --draft-layers 1");
    ASSERT_EQ(trained.exit_code, 0) << trained.errors;

    const std::string occupied = folder.file("occupied");
    std::filesystem::create_directory(occupied);
    folder.write("occupied/letter.txt", "keep me");
    const auto refused = run_dflash(command("--out " + occupied));
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_TRUE(std::filesystem::exists(occupied + "/letter.txt"));
}

}  // namespace
}  // namespace dflash
