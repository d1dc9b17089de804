// SPDX-License-Identifier: MIT
// `dflash tokenize` and `dflash prepare`, as a user runs them.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "cli/running_program.h"
#include "data/dataset.h"
#include "io/json.h"
#include "support/chats.h"
#include "support/errors.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace dflash {
namespace {

using testing::chat_line;
using testing::ProgramResult;
using testing::run_dflash;
using testing::TemporaryFolder;

const std::string kTarget = "--target " DFLASH_FIXTURES "/tiny-qwen3.5 ";

bool is_one_error_line(const std::string& errors) {
    return errors.find("dflash: ") != std::string::npos && errors.find("dflash: ") == errors.rfind("dflash: ") && errors.ends_with("\n");
}

TEST(TokenizeCommand, GivesIdsALineAndTextBack) {
    const Json golden = read_json_file(DFLASH_FIXTURES "/golden/tokenizer.json");
    std::string texts;
    std::string ids;
    for (const Json& entry : golden) {
        texts += entry.at("text").dump() + "\n";
        ids += Json{{"ids", entry.at("ids")}}.dump() + "\n";
    }
    const ProgramResult encoded = run_dflash("tokenize --json " + kTarget, texts);
    EXPECT_EQ(encoded.exit_code, 0) << encoded.errors;
    EXPECT_EQ(encoded.output, ids);
    EXPECT_NE(encoded.errors.find("3836 merges"), std::string::npos);
    const ProgramResult decoded = run_dflash("tokenize --json --decode " + kTarget, ids);
    EXPECT_EQ(decoded.exit_code, 0);
    EXPECT_NE(decoded.output.find(R"({"text":"hello world"})"), std::string::npos);
    EXPECT_EQ(run_dflash("tokenize --decode " + kTarget, "340 75 330").output,
              Tokenizer(DFLASH_FIXTURES "/tiny-qwen3.5").decode({340, 75, 330}));
    EXPECT_EQ(run_dflash("tokenize " + kTarget, "<|im_end|>").output, "   4094  \"<|im_end|>\"\n");
    EXPECT_EQ(run_dflash("tokenize --plain " + kTarget, "<|im_end|>").output.find("4094"), std::string::npos);
}

TEST(TokenizeCommand, ReportsBadInputInOneLine) {
    for (const auto& [arguments, input] :
         std::vector<std::pair<std::string, std::string>>{{"tokenize --json " + kTarget, "not json\n"},
                                                          {"tokenize --json " + kTarget, "[1]\n"},
                                                          {"tokenize --json --decode " + kTarget, "[99999]\n"},
                                                          {"tokenize --decode " + kTarget, "12 x"},
                                                          {"tokenize " + kTarget, "\xff"},
                                                          {"tokenize --target /no/such", "x"},
                                                          {"tokenize", "x"}}) {
        const ProgramResult result = run_dflash(arguments, input);
        EXPECT_EQ(result.exit_code, 2) << arguments;
        EXPECT_TRUE(is_one_error_line(result.errors)) << result.errors;
        EXPECT_EQ(result.output, "");
    }
}

TEST(PrepareCommand, PrintsItsCounts) {
    const TemporaryFolder folder;
    const std::string data =
        folder.write("chats.jsonl", chat_line({{"user", "u"}, {"assistant", "an answer"}}) + "\n{}\n" +
                                        chat_line({{"user", "u"}, {"assistant", "an answer with many more words"}}) + "\n");
    const std::string flags = "prepare " + kTarget + "--data " + data + " --out " + folder.file("data");
    const ProgramResult result = run_dflash(flags + " --system Sys --max-length 40");
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    for (const char* line : {"rows in                       3", "rows used                     2", "rows refused                  1",
                             "neither messages nor a prompt nor input_ids", "supervised tokens"}) {
        EXPECT_NE(result.output.find(line), std::string::npos) << result.output;
    }
    const Dataset dataset(folder.file("data"));
    EXPECT_EQ(dataset.documents(), 2);
    EXPECT_EQ(dataset.chat_template(), (ChatTemplate{TemplateKind::kChatml, false, "Sys"}));

    EXPECT_EQ(run_dflash(flags + " --strict").exit_code, 2);
    EXPECT_EQ(run_dflash(flags + " --template alpaca").exit_code, 2);
    EXPECT_EQ(run_dflash(flags + " --thinking maybe").exit_code, 2);
    EXPECT_EQ(run_dflash(flags + " --max-length -1").exit_code, 2);
    EXPECT_EQ(Dataset(folder.file("data")).fingerprint(), dataset.fingerprint());  // failures changed nothing
}

TEST(PrepareCommand, FailsWhenNothingIsUsable) {
    const TemporaryFolder folder;
    std::string rows;
    for (int i = 0; i < 40; ++i) rows += chat_line({{"system", "s"}}) + "\n";
    const ProgramResult result =
        run_dflash("prepare " + kTarget + "--data " + folder.write("chats.jsonl", rows) + " --out " + folder.file("data"));
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_TRUE(is_one_error_line(result.errors));
    EXPECT_NE(result.errors.find("0 of 40 rows usable: 40 x no assistant turn"), std::string::npos) << result.errors;
    EXPECT_EQ(folder.num_files(), 1U);
}

// Killed at any moment, the folder is absent or whole; the next run clears up.
TEST(PrepareCommand, SurvivesKills) {
    const TemporaryFolder folder;
    const std::string out = folder.file("data");
    const std::string input = DFLASH_FIXTURES "/data/regen_train.jsonl";
    int num_killed = 0;
    for (int milliseconds = 10; milliseconds < 2000; milliseconds *= 2) {
        testing::Program program({"prepare", "--target", DFLASH_FIXTURES "/tiny-qwen3.5", "--data", input, "--out", out});
        std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
        program.kill();
        num_killed += program.wait().exit_code == -1 ? 1 : 0;
        const bool is_there = std::filesystem::exists(out);
        EXPECT_EQ(is_there ? Dataset(out).documents() : 4835, 4835);
    }
    EXPECT_GT(num_killed, 0);
    ASSERT_EQ(run_dflash("prepare " + kTarget + "--data " + input + " --out " + out).exit_code, 0);
    EXPECT_EQ(Dataset(out).documents(), 4835);
    EXPECT_EQ(folder.num_files(), 1U);
}

}  // namespace
}  // namespace dflash
