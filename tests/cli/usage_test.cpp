// SPDX-License-Identifier: MIT
// Bad usage and bad input of every command: exit code 2, one line that says what is wrong, nothing left behind.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/running_program.h"

namespace dflash {
namespace {

using testing::lines_of;
using testing::ProgramResult;
using testing::refused;
using testing::run_program;
using testing::TemporaryFolder;
using Words = std::vector<std::string>;

const std::string kTarget = std::string(DFLASH_FIXTURES) + "/tiny-qwen3";

// Commands as `dflash --help` lists them.
Words commands() {
    Words names;
    bool listed = false;
    for (const std::string& line : lines_of(run_program({"--help"}).output)) {
        if (line.rfind("Subcommands:", 0) == 0) {
            listed = true;
        } else if (listed && line.rfind("  ", 0) == 0 && line.size() > 2 && line[2] != ' ') {
            names.push_back(line.substr(2, line.find(' ', 2) - 2));
        }
    }
    return names;
}

TEST(Usage, HelpAndVersion) {
    const ProgramResult version = run_program({"--version"});
    EXPECT_EQ(version.exit_code, 0);
    EXPECT_EQ(version.output.rfind("dflash ", 0), 0U);
    EXPECT_EQ(run_program({"--help"}).exit_code, 0);
    EXPECT_GE(commands().size(), 10U);
}

TEST(Usage, EveryCommandHasHelpWithAnExample) {
    for (const std::string& command : commands()) {
        const ProgramResult help = run_program({command, "--help"});
        EXPECT_EQ(help.exit_code, 0) << command;
        EXPECT_NE(help.output.find("Example"), std::string::npos) << command;
        EXPECT_NE(help.output.find("dflash " + command), std::string::npos) << command;
    }
}

TEST(Usage, WrongWordsAreRefused) {
    EXPECT_TRUE(refused(run_program({}), {}));
    EXPECT_TRUE(refused(run_program({"nonsense"}), {"no such command or flag: nonsense"}));
    EXPECT_TRUE(refused(run_program({"--nonsense"}), {"no such command or flag: --nonsense"}));
    for (const std::string& command : commands()) {
        const ProgramResult result = run_program({command, "--no-such-flag"});
        EXPECT_EQ(result.exit_code, 2) << command;
        EXPECT_EQ(lines_of(result.errors).size(), 1U) << command << ": " << result.errors;
    }
}

struct BadInput {
    const char* name;
    Words words;
    Words fragments;
};

TEST(Usage, DecodingCommandsRefuseBadInput) {
    TemporaryFolder folder;
    const std::string good = folder.write("good.jsonl", R"({"id": "a", "prompt": "def f("})"
                                                        "\n");
    const std::string broken = folder.write("broken.jsonl", R"({"id": "a", "prompt": "x"})"
                                                            "\n{\"id\": \n");
    const std::string empty = folder.write("empty.jsonl", "\n\n");
    const std::string foreign = folder.write("foreign.jsonl", R"({"prompt_ids": [1, 99999]})");
    const std::string no_ids = folder.write("no_ids.jsonl", R"({"prompt_ids": []})");
    const std::string chats = folder.write("chats.jsonl", R"({"id": "a", "messages": []})");
    const std::string taken = folder.write("taken.jsonl", "old");
    const std::string out = folder.file("out.jsonl");
    const std::string absent = folder.file("absent");
    const BadInput cases[] = {
        {"no source", {"generate", "--target", kTarget}, {"--prompts", "--prompt", "--chat"}},
        {"two sources", {"generate", "--target", kTarget, "--prompt", "x", "--chat", "y"}, {"one of"}},
        {"no target", {"generate", "--prompt", "x"}, {"--target"}},
        {"absent target", {"generate", "--target", absent, "--prompt", "x"}, {absent}},
        {"absent drafter", {"generate", "--target", kTarget, "--draft", absent, "--prompt", "x"}, {absent}},
        {"absent prompts", {"generate", "--target", kTarget, "--prompts", absent}, {absent}},
        {"broken row", {"generate", "--target", kTarget, "--prompts", broken, "--json"}, {"broken.jsonl line 2"}},
        {"a folder of prompts", {"generate", "--target", kTarget, "--prompts", kTarget}, {"is a folder", "prompts"}},
        {"prompts without a name", {"generate", "--target", kTarget, "--prompts", ""}, {"--prompts"}},
        {"no rows", {"generate", "--target", kTarget, "--prompts", empty}, {"empty.jsonl", "no prompts"}},
        {"empty prompt_ids", {"generate", "--target", kTarget, "--prompts", no_ids}, {"no_ids.jsonl line 1", "empty"}},
        {"unknown token", {"generate", "--target", kTarget, "--prompts", foreign}, {"99999"}},
        {"temperature", {"generate", "--target", kTarget, "--prompt", "x", "--temperature", "-1"}, {"--temperature"}},
        {"top-p", {"generate", "--target", kTarget, "--prompt", "x", "--top-p", "1.5"}, {"--top-p"}},
        {"top-k", {"generate", "--target", kTarget, "--prompt", "x", "--top-k", "-2"}, {"--top-k"}},
        {"max-new-tokens", {"generate", "--target", kTarget, "--prompt", "x", "--max-new-tokens", "-1"}, {"--max-new-tokens"}},
        {"max-new-tokens text", {"generate", "--target", kTarget, "--prompt", "x", "--max-new-tokens", "many"}, {"--max-new-tokens"}},
        {"thinking", {"generate", "--target", kTarget, "--chat", "x", "--thinking", "perhaps"}, {"--thinking"}},
        {"template", {"generate", "--target", kTarget, "--chat", "x", "--template", "other"}, {"--template", "other"}},
        {"device", {"generate", "--target", kTarget, "--prompt", "x", "--device", "gpu"}, {"--device", "gpu"}},
        {"eval without drafter", {"eval", "--target", kTarget, "--prompts", good}, {"--draft"}},
        {"eval absent drafter", {"eval", "--target", kTarget, "--draft", absent, "--prompts", good}, {absent}},
        {"target as drafter", {"eval", "--target", kTarget, "--draft", kTarget, "--prompts", good}, {}},
        {"regenerate absent data", {"regenerate", "--target", kTarget, "--data", absent, "--out", out}, {absent}},
        {"regenerate over a file", {"regenerate", "--target", kTarget, "--data", chats, "--out", taken}, {"taken.jsonl", "exists"}},
        {"regenerate no usable row", {"regenerate", "--target", kTarget, "--data", chats, "--out", out}, {"0 of 1"}},
        {"regenerate no token",
         {"regenerate", "--target", kTarget, "--data", chats, "--out", out, "--max-new-tokens", "0"},
         {"--max-new-tokens"}},
    };
    const std::size_t files = folder.num_files();
    for (const BadInput& bad : cases) {
        SCOPED_TRACE(bad.name);
        EXPECT_TRUE(refused(run_program(bad.words), bad.fragments));
    }
    EXPECT_EQ(folder.num_files(), files) << "something was left behind";
    EXPECT_EQ(testing::file_text(taken), "old");
}

TEST(Usage, OtherCommandsRefuseAbsentFiles) {
    TemporaryFolder folder;
    const std::string absent = folder.file("absent");
    const std::string out = folder.file("out");
    const BadInput cases[] = {
        {"tokenize", {"tokenize", "--target", absent}, {absent}},
        {"prepare", {"prepare", "--target", absent, "--data", absent, "--out", out}, {absent}},
        {"features", {"features", "--target", absent, "--data", absent, "--layers", "0", "--out", out}, {absent}},
        {"inspect", {"inspect", absent}, {absent}},
        {"inspect without a name", {"inspect", ""}, {"empty"}},
        {"train", {"train", "--target", absent, "--data", absent, "--out", out}, {absent}},
        {"plan", {"plan", "--target", absent}, {absent}},
        {"export", {"export", "--draft", absent, "--target", absent, "--out", out}, {absent}},
    };
    const Words present = commands();
    for (const BadInput& bad : cases) {
        if (std::find(present.begin(), present.end(), bad.words[0]) == present.end()) continue;
        SCOPED_TRACE(bad.name);
        EXPECT_TRUE(refused(run_program(bad.words), bad.fragments));
    }
    EXPECT_EQ(folder.num_files(), 0U) << "something was left behind";
}

// The file system itself refuses such a path; asking whether it exists must not end as a failure of the program.
TEST(Usage, PathsThatCannotBeLookedUpAreBadInput) {
    TemporaryFolder folder;
    const std::string long_name(300, 'x');
    const std::string out = folder.file("out");
    const BadInput cases[] = {
        {"tokenize", {"tokenize", "--target", long_name}, {long_name}},
        {"train data", {"train", "--target", kTarget, "--data", long_name, "--out", out}, {long_name}},
        {"eval drafter", {"eval", "--target", kTarget, "--draft", long_name, "--prompts", long_name}, {long_name}},
        {"export drafter", {"export", "--draft", long_name, "--target", kTarget, "--out", out}, {long_name}},
        {"bench shape", {"bench", "step", "--device", "cpu", "--shape", long_name}, {long_name}},
    };
    for (const BadInput& bad : cases) {
        SCOPED_TRACE(bad.name);
        EXPECT_TRUE(refused(run_program(bad.words), bad.fragments));
    }
    EXPECT_EQ(folder.num_files(), 0U) << "something was left behind";
}

// A variable that a script forgot to set, a number with a slip: every flag that takes a value refuses them alike.
TEST(Usage, WordsThatAreNoValuesAreRefused) {
    const BadInput cases[] = {
        {"no drafter after all", {"generate", "--target", kTarget, "--prompt", "x", "--draft", ""}, {"--draft", "empty"}},
        {"no folder", {"export", "--draft", kTarget, "--out", ""}, {"--out", "empty"}},
        {"no number", {"plan", "--target", kTarget, "--lr", ""}, {"--lr", "empty"}},
        {"nothing behind =", {"generate", "--system=", "--target", kTarget, "--prompt", "x"}, {"--system", "no value"}},
        {"not UTF-8", {"generate", "--target", kTarget, "--chat", "a\xff"}, {"--chat", "UTF-8"}},
        {"a path that is not UTF-8", {"inspect", "\xff"}, {"path", "UTF-8"}},
        {"a fraction", {"plan", "--target", kTarget, "--steps", "1.5"}, {"--steps", "'1.5' is no whole number"}},
        {"an exponent", {"plan", "--target", kTarget, "--steps", "1e3"}, {"--steps", "'1e3' is no whole number"}},
        {"more than 64 bits", {"plan", "--target", kTarget, "--seed", "99999999999999999999"}, {"--seed", "no whole number"}},
        {"negative", {"generate", "--target", kTarget, "--prompt", "x", "--seed", "-1"}, {"--seed", "from 0 on"}},
        {"a negative count",
         {"generate", "--target", kTarget, "--prompt", "x", "--limit", "-1"},
         {"--limit", "is -1; it must be 0 or more"}},
        {"no real number", {"plan", "--target", kTarget, "--lr", "nan"}, {"--lr", "'nan' is no number"}},
        {"of a list", {"plan", "--target", kTarget, "--target-layer-ids", "1,x"}, {"--target-layer-ids", "'x' is no whole number"}},
        {"threads", {"generate", "--target", kTarget, "--prompt", "x", "--threads", "100000"}, {"--threads", "0 to 4096"}},
        {"bench tokens", {"bench", "step", "--device", "cpu", "--shape", "demo", "--token-budget", "1"}, {"2 or more"}},
        {"bench anchors", {"bench", "step", "--device", "cpu", "--shape", "demo", "--max-anchors", "-1"}, {"--max-anchors"}},
        {"bench repeats", {"bench", "step", "--device", "cpu", "--shape", "demo", "--repeats", "0"}, {"--repeats"}},
        {"bench attention repeats", {"bench", "attention", "--device", "cpu", "--table", "--repeats", "0"}, {"--repeats", "1 to"}},
        {"bench attention, too many", {"bench", "attention", "--device", "cpu", "--table", "--repeats", "9999999999"}, {"--repeats"}},
        {"bench attention of nothing", {"bench", "attention", "--device", "cpu"}, {"--table", "--shape"}},
        {"bench attention of both", {"bench", "attention", "--device", "cpu", "--table", "--shape", "demo"}, {"--table", "--shape"}},
        {"anchors of a table for people", {"bench", "attention", "--device", "cpu", "--table", "--anchors"}, {"--anchors", "--json"}},
        {"tune tokens", {"tune", "--shape", "demo", "--token-budget", "-1"}, {"--token-budget", "0 to"}},
        {"tune one token", {"tune", "--shape", "demo", "--token-budget", "1"}, {"--token-budget", "2 or more"}},
        {"tune too many tokens", {"tune", "--shape", "demo", "--token-budget", "99999999999"}, {"--token-budget", "0 to"}},
        {"tune anchors", {"tune", "--shape", "demo", "--max-anchors", "-1"}, {"--max-anchors", "0 to"}},
        {"tune for nothing", {"tune"}, {"--shape", "--draft"}},
        {"nothing to measure",
         {"eval", "--target", kTarget, "--draft", kTarget, "--prompts", kTarget, "--max-new-tokens", "1"},
         {"--max-new-tokens", "at least 2"}},
        {"chats to inspect", {"inspect", std::string(DFLASH_FIXTURES) + "/data/regen_train.jsonl"}, {"*.safetensors"}},
    };
    for (const BadInput& bad : cases) {
        SCOPED_TRACE(bad.name);
        EXPECT_TRUE(refused(run_program(bad.words), bad.fragments));
    }
}

TEST(Usage, NumbersAreDecimal) {
    const auto arena = [](const char* layers) { return run_program({"plan", "--target", kTarget, "--json", "--draft-layers", layers}); };
    EXPECT_EQ(arena("010").output, arena("10").output);
    EXPECT_NE(arena("010").output, arena("8").output);
    EXPECT_TRUE(refused(arena("0x10"), {"--draft-layers", "no whole number"}));
}

TEST(Usage, ARunsFolderNamesItsDrafter) {
    TemporaryFolder folder;
    std::filesystem::create_directories(folder.file("run/draft"));
    folder.write("run/config.json", "{}");
    folder.write("run/draft/config.json", "{}");
    const std::string run = folder.file("run");
    EXPECT_TRUE(refused(run_program({"export", "--draft", run, "--out", folder.file("out")}), {run + "/draft"}));
    EXPECT_EQ(folder.num_files(), 1U);
}

TEST(Usage, TrainingWithoutPromptsToEvaluateOnIsRefused) {
    TemporaryFolder folder;
    const std::string rows = folder.write("rows.jsonl", R"({"id": "a", "input_ids": [1, 2, 3, 4], "loss_mask": [0, 1, 1, 1]})");
    const std::string blank = folder.write("blank.jsonl", "\n \r\n");
    const ProgramResult result = run_program({"train", "--target", kTarget, "--data", rows, "--out", folder.file("run"), "--eval-prompts",
                                              blank, "--device", "cpu", "--token-budget", "64", "--max-anchors", "4"});
    EXPECT_TRUE(refused(result, {"--eval-prompts", "holds no prompts"}));
    EXPECT_EQ(folder.num_files(), 2U);
}

// Refused before the work whose result would go there; what is there stays.
TEST(Usage, PlacesThatCannotTakeTheOutputAreRefused) {
    TemporaryFolder folder;
    const std::string rows = folder.write("rows.jsonl", R"({"id": "a", "input_ids": [1, 2, 3, 4], "loss_mask": [0, 1, 1, 1]})");
    const std::string link = folder.file("link");
    ASSERT_EQ(::symlink(folder.file("nowhere").c_str(), link.c_str()), 0);
    const std::string pipe = folder.file("pipe");
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    const auto prepare = [&](const std::string& out) { return Words{"prepare", "--target", kTarget, "--data", rows, "--out", out}; };
    const auto features = [&](const std::string& out) {
        return Words{"features", "--target", kTarget, "--data", rows, "--layers", "0", "--out", out};
    };
    const auto train = [&](const std::string& out) { return Words{"train", "--target", kTarget, "--data", rows, "--out", out}; };
    const BadInput cases[] = {
        {"prepare .", prepare("."), {"'.'", "name"}},
        {"prepare link", prepare(link), {link, "leads nowhere"}},
        {"prepare below a file", prepare(rows + "/x/y"), {rows, "no folder"}},
        {"features ..", features(".."), {"'..'", "name"}},
        {"features link", features(link), {link, "leads nowhere"}},
        {"train file", train(rows), {rows, "is a file"}},
        {"train link", train(link), {link, "leads nowhere"}},
        {"train over its target", train(kTarget), {kTarget, "holds"}},
        {"plan into a folder", {"plan", "--target", kTarget, "--svg", folder.path()}, {folder.path(), "a folder"}},
        {"plan into a pipe", {"plan", "--target", kTarget, "--svg", pipe}, {pipe, "no regular file"}},
        {"regenerate from a pipe",
         {"regenerate", "--target", kTarget, "--data", pipe, "--out", folder.file("out.jsonl")},
         {pipe, "read twice"}},
    };
    const std::size_t files = folder.num_files();
    for (const BadInput& bad : cases) {
        SCOPED_TRACE(bad.name);
        EXPECT_TRUE(refused(run_program(bad.words), bad.fragments));
    }
    EXPECT_EQ(folder.num_files(), files) << "something was left behind, or replaced";
    EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

}  // namespace
}  // namespace dflash
