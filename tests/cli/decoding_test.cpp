// SPDX-License-Identifier: MIT
// generate, eval and regenerate from the outside, on a bundled target and a drafter with random weights in a folder.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/running_program.h"
#include "draft/provenance.h"
#include "generate/text_stream.h"
#include "generate/tiny_decoder.h"

namespace dflash {
namespace {

using testing::file_text;
using testing::golden_texts;
using testing::GoldenText;
using testing::lines_of;
using testing::Program;
using testing::ProgramResult;
using testing::refused;
using testing::run_program;
using testing::TemporaryFolder;
using Tokens = std::vector<std::int32_t>;
using Words = std::vector<std::string>;

const char* const kName = "tiny-qwen3.5";
const std::string kTarget = testing::tiny_folder(kName);
const std::string kHeldOut = std::string(DFLASH_FIXTURES) + "/data/chat_heldout.jsonl";

// A drafter's folder as training leaves it. `fingerprint`: of the target that training.json names.
void write_drafter(const std::string& folder, const std::string& fingerprint) {
    const DraftSpec spec = testing::tiny_draft_spec(read_target_config(kTarget), 8);
    const testing::TinyDecoder tiny(kName, spec, {.max_tokens = 8, .max_prompt = 4});
    DraftProvenance provenance;
    provenance.training = {{"target_fingerprint", fingerprint}, {"template", "chatml"}, {"thinking", "off"}, {"settings", {{"seed", 7}}}};
    HostReader reader(Stream{});
    save_draft(folder, spec, tiny.target, tiny.draft->weights, provenance, reader);
}

class DecodingCommands : public ::testing::Test {
protected:
    static void SetUpTestSuite() {
        folder_ = std::make_unique<TemporaryFolder>();
        write_drafter(draft(), target_fingerprint(kTarget));
        std::string rows;
        for (std::size_t i = 0; const GoldenText& text : golden_texts(kName)) {
            rows += Json{{"id", "golden-" + std::to_string(i++)}, {"prompt_ids", text.prompt}}.dump() + "\n";
        }
        folder_->write("prompts.jsonl", rows);
    }
    static void TearDownTestSuite() { folder_.reset(); }

    static std::string draft() { return folder_->file("draft"); }
    static std::string prompts() { return folder_->file("prompts.jsonl"); }
    static std::unique_ptr<TemporaryFolder> folder_;
};
std::unique_ptr<TemporaryFolder> DecodingCommands::folder_;

std::vector<Json> json_lines(const std::string& text) {
    std::vector<Json> rows;
    for (const std::string& line : lines_of(text)) rows.push_back(parse_json(line, "output"));
    return rows;
}

TEST_F(DecodingCommands, GenerateWritesALineForEachPromptWithAndWithoutADrafter) {
    const Words words = {"generate", "--target", kTarget, "--prompts", prompts(), "--max-new-tokens", "24", "--json"};
    Words drafted_words = words;
    drafted_words.insert(drafted_words.end(), {"--draft", draft()});
    const ProgramResult plain = run_program(words);
    const ProgramResult drafted = run_program(drafted_words);
    ASSERT_EQ(plain.exit_code, 0) << plain.errors;
    ASSERT_EQ(drafted.exit_code, 0) << drafted.errors;
    const std::vector<Json> plain_rows = json_lines(plain.output);
    const std::vector<Json> drafted_rows = json_lines(drafted.output);
    const auto golden = golden_texts(kName);
    ASSERT_EQ(plain_rows.size(), golden.size());
    ASSERT_EQ(drafted_rows.size(), golden.size());
    const Tokenizer tokenizer(kTarget + "/tokenizer.json");
    for (std::size_t i = 0; i < golden.size(); ++i) {
        const auto ids = plain_rows[i].at("output_ids").get<Tokens>();
        EXPECT_EQ(plain_rows[i].at("id"), "golden-" + std::to_string(i));
        EXPECT_EQ(plain_rows[i].at("prompt_ids").get<Tokens>(), golden[i].prompt);
        EXPECT_LE(ids.size(), 24U);
        EXPECT_EQ(plain_rows[i].at("text"), output_text(tokenizer, ids));
        EXPECT_EQ(plain_rows[i].at("verify_steps").get<std::size_t>(), ids.size() - 1);
        EXPECT_EQ(plain_rows[i].at("acceptance_length").get<double>(), 1);
        EXPECT_EQ(drafted_rows[i].at("output_ids").get<Tokens>(), ids);
        EXPECT_GE(drafted_rows[i].at("acceptance_length").get<double>(), 1);
        EXPECT_EQ(drafted_rows[i].at("acceptance_length").get<double>() * drafted_rows[i].at("verify_steps").get<double>(),
                  static_cast<double>(ids.size() - 1));
    }
}

TEST_F(DecodingCommands, GenerateLeavesTheLastAssistantTurnOut) {
    const std::string rows = folder_->write(
        "chat.jsonl",
        "{\"id\": 5, \"messages\": [{\"role\": \"user\", \"content\": \"Sort a list.\"}, {\"role\": \"assistant\", \"content\": \"x\"}]}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Sort a list.\"}]}\n");
    const ProgramResult result = run_program({"generate", "--target", kTarget, "--prompts", rows, "--max-new-tokens", "1", "--json"});
    ASSERT_EQ(result.exit_code, 0) << result.errors;
    const std::vector<Json> out = json_lines(result.output);
    ASSERT_EQ(out.size(), 2U);
    EXPECT_EQ(out[0].at("prompt_ids"), out[1].at("prompt_ids"));
    EXPECT_EQ(out[0].at("id"), "5");
    EXPECT_EQ(out[1].at("id"), "2");                        // its line
    EXPECT_TRUE(out[0].at("acceptance_length").is_null());  // the prompt's own pass gave the only token
    const Tokenizer tokenizer(kTarget + "/tokenizer.json");
    EXPECT_EQ(out[0].at("prompt_ids").get<Tokens>(), tokenizer.encode("<|im_start|>user\nSort a list.<|im_end|>\n<|im_start|>assistant\n"));
}

TEST_F(DecodingCommands, GenerateStreamsOneAnswerAndTellsTheSpeed) {
    const ProgramResult result = run_program(
        {"generate", "--target", kTarget, "--draft", draft(), "--chat", "Write the function add(a, b).", "--max-new-tokens", "24"});
    ASSERT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_NE(result.output.find("```python"), std::string::npos) << result.output;
    EXPECT_NE(result.errors.find("tokens/s"), std::string::npos);
    EXPECT_NE(result.errors.find("acceptance length"), std::string::npos);
    EXPECT_EQ(result.errors.find("```"), std::string::npos);
}

TEST_F(DecodingCommands, SampledTextRepeatsWithItsSeed) {
    const auto sampled = [&](const std::string& seed) {
        const ProgramResult result = run_program({"generate", "--target", kTarget, "--draft", draft(), "--prompts", prompts(), "--limit",
                                                  "1", "--max-new-tokens", "16", "--temperature", "3", "--seed", seed, "--json"});
        EXPECT_EQ(result.exit_code, 0) << result.errors;
        return result.output;
    };
    const std::string once = sampled("1");
    EXPECT_EQ(sampled("1"), once);
    EXPECT_NE(sampled("2"), once);
}

TEST_F(DecodingCommands, EvalMeasuresNextToPlainDecoding) {
    const ProgramResult result = run_program(
        {"eval", "--target", kTarget, "--draft", draft(), "--prompts", kHeldOut, "--limit", "3", "--max-new-tokens", "16", "--json"});
    ASSERT_EQ(result.exit_code, 0) << result.errors;
    const Json row = parse_json(result.output, "output");
    EXPECT_EQ(row.at("prompts"), 3);
    EXPECT_EQ(row.at("identical_to_plain_greedy"), true);
    EXPECT_EQ(row.at("differing_tokens"), 0);
    EXPECT_EQ(row.at("acceptance_by_position").size(), 7U);
    EXPECT_GE(row.at("acceptance_length").get<double>(), 1);
    EXPECT_EQ(row.at("new_tokens").get<double>(), 3 + row.at("acceptance_length").get<double>() * row.at("verify_steps").get<double>());
    EXPECT_GT(row.at("tokens_per_second").get<double>(), 0);
    EXPECT_GT(row.at("plain_tokens_per_second").get<double>(), 0);
}

TEST_F(DecodingCommands, EvalOfAnUntrainedDrafterNeedsItsConfigAlone) {
    const std::string bare = folder_->file("bare");
    std::filesystem::create_directory(bare);
    std::filesystem::copy_file(draft() + "/config.json", bare + "/config.json");
    const Words words = {"eval", "--target", kTarget, "--draft", bare, "--prompts", kHeldOut, "--limit", "2", "--max-new-tokens", "8"};
    EXPECT_TRUE(refused(run_program(words), {}));
    Words untrained = words;
    untrained.push_back("--untrained");
    const ProgramResult result = run_program(untrained);
    ASSERT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_NE(result.output.find("untrained"), std::string::npos);
    EXPECT_NE(result.output.find("identical to plain greedy: yes"), std::string::npos);
}

TEST_F(DecodingCommands, ADrafterOfAnotherTargetIsRefusedUnlessAllowed) {
    const std::string other = folder_->file("other");
    write_drafter(other, std::string(64, '0'));
    Words words = {"generate", "--target", kTarget, "--draft",          other, "--prompts",
                   prompts(),  "--limit",  "1",     "--max-new-tokens", "4",   "--json"};
    EXPECT_TRUE(refused(run_program(words), {"other", "another target", "--allow-target-mismatch"}));
    words.push_back("--allow-target-mismatch");
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_NE(result.errors.find("another target"), std::string::npos);
}

TEST_F(DecodingCommands, ARowTooLongForTheTargetIsRefused) {
    const std::string rows = folder_->write("long.jsonl", Json{{"id", "long"}, {"prompt_ids", Tokens(4096, 5)}}.dump() + "\n");
    EXPECT_TRUE(refused(run_program({"generate", "--target", kTarget, "--prompts", rows, "--json"}), {"long", "4096"}));
}

const char* const kChats =
    "{\"id\": \"one\", \"conversations\": [{\"from\": \"human\", \"value\": \"Sort a list.\"}, {\"from\": \"gpt\", \"value\": \"old\"}], "
    "\"source\": 3}\n"
    "{\"id\": \"bad\", \"messages\": [{\"role\": \"assistant\", \"content\": \"I start.\"}]}\n"
    "{\"messages\": [{\"role\": \"system\", \"content\": \"You write Python.\"}, {\"role\": \"user\", \"content\": \"Add.\"}, {\"role\": "
    "\"assistant\", "
    "\"content\": \"old\"}, {\"role\": \"user\", \"content\": \"Subtract.\"}, {\"role\": \"assistant\", \"content\": \"old\"}]}\n"
    "{\"id\": \"open\", \"messages\": [{\"role\": \"user\", \"content\": \"Multiply.\"}]}\n";

TEST_F(DecodingCommands, RegenerateAnswersEveryTurnInTheRowsOwnShape) {
    const std::string data = folder_->write("chats.jsonl", kChats);
    const std::string out = folder_->file("answers.jsonl");
    const ProgramResult result = run_program({"regenerate", "--target", kTarget, "--data", data, "--out", out, "--max-new-tokens", "12"});
    ASSERT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_NE(result.output.find("starts with an assistant turn"), std::string::npos) << result.output;
    const std::vector<Json> rows = json_lines(file_text(out));
    ASSERT_EQ(rows.size(), 3U);
    EXPECT_EQ(rows[0].at("source"), 3);
    EXPECT_EQ(rows[0].at("conversations").at(0).at("value"), "Sort a list.");
    EXPECT_NE(rows[0].at("conversations").at(1).at("value"), "old");
    EXPECT_EQ(rows[1].at("messages").size(), 5U);
    EXPECT_EQ(rows[1].at("id"), "3");  // its line, since it has no id
    EXPECT_NE(rows[1].at("messages").at(2).at("content"), "old");
    EXPECT_NE(rows[1].at("messages").at(4).at("content"), "old");
    ASSERT_EQ(rows[2].at("messages").size(), 2U);
    EXPECT_EQ(rows[2].at("messages").at(1).at("role"), "assistant");

    // The second turn is the target's answer to its own first one.
    Json conversation = rows[1];
    conversation["messages"].at(4)["content"] = "left out";
    const std::string asked = folder_->write("asked.jsonl", conversation.dump() + "\n");
    const ProgramResult again = run_program({"generate", "--target", kTarget, "--prompts", asked, "--max-new-tokens", "12", "--json"});
    ASSERT_EQ(again.exit_code, 0) << again.errors;
    EXPECT_EQ(parse_json(again.output, "output").at("text"), rows[1].at("messages").at(4).at("content"));
}

// Lines of the partial output beside `out`, and its path.
std::optional<std::string> partial_of(const std::string& out) {
    const std::filesystem::path path(out);
    for (const auto& entry : std::filesystem::directory_iterator(path.parent_path())) {
        const std::string name = entry.path().filename().string();
        if (name.rfind(path.filename().string() + ".", 0) == 0 && name.ends_with(".partial")) return entry.path().string();
    }
    return std::nullopt;
}

TEST_F(DecodingCommands, RegenerateContinuesAfterBeingKilled) {
    TemporaryFolder work;
    const auto words = [&](const std::string& out) {
        return Words{"regenerate", "--target", kTarget, "--data", kHeldOut, "--out", out, "--limit", "8", "--max-new-tokens", "24"};
    };
    ASSERT_EQ(run_program(words(work.file("straight.jsonl"))).exit_code, 0);
    const std::string out = work.file("resumed.jsonl");
    Program first(words(out));
    const auto partial_lines = [&] {
        const auto partial = partial_of(out);
        return partial ? lines_of(file_text(*partial)).size() : 0;
    };
    while (partial_lines() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    first.kill();
    const ProgramResult killed = first.wait();
    ASSERT_EQ(killed.exit_code, -1) << "it was done before it could be killed";
    ASSERT_FALSE(std::filesystem::exists(out));
    std::ofstream(*partial_of(out), std::ios::app) << "{\"id\": \"cut sho";  // as a kill in the middle of a write leaves it

    const ProgramResult second = run_program(words(out));
    ASSERT_EQ(second.exit_code, 0) << second.errors;
    EXPECT_NE(second.errors.find("from an earlier run"), std::string::npos);
    EXPECT_EQ(file_text(out), file_text(work.file("straight.jsonl")));
    EXPECT_EQ(partial_of(out), std::nullopt);
}

}  // namespace
}  // namespace dflash
