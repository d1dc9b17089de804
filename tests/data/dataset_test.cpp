// SPDX-License-Identifier: MIT
#include "data/dataset.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "io/atomic_file.h"
#include "io/json.h"
#include "support/chats.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace dflash {
namespace {

using testing::chat_line;
using testing::ready_line;
using testing::refuses;
using testing::TemporaryFolder;

constexpr const char* kTarget = DFLASH_FIXTURES "/tiny-qwen3.5";

std::string lines(const std::vector<std::string>& rows) {
    std::string text;
    for (const std::string& row : rows) text += row + "\n";
    return text;
}

PrepareSettings settings_for(const TemporaryFolder& folder, const std::string& text, std::int64_t max_length = 0) {
    PrepareSettings settings;
    settings.inputs = {folder.write("chats.jsonl", text)};
    settings.target = kTarget;
    settings.out = folder.file("data");
    settings.max_length = max_length;
    return settings;
}

void expect_same_documents(const Dataset& a, const Dataset& b) {
    ASSERT_EQ(a.documents(), b.documents());
    for (std::int64_t row = 0; row < a.documents(); ++row) {
        const DocumentView x = a.document(row);
        const DocumentView y = b.document(row);
        EXPECT_TRUE(std::equal(x.ids.begin(), x.ids.end(), y.ids.begin(), y.ids.end())) << row;
        EXPECT_TRUE(std::equal(x.loss_mask.begin(), x.loss_mask.end(), y.loss_mask.begin(), y.loss_mask.end())) << row;
        EXPECT_EQ(a.document_id(row), b.document_id(row));
    }
    EXPECT_EQ(a.fingerprint(), b.fingerprint());
}

TEST(Dataset, RoundTripsThroughAFolder) {
    const TemporaryFolder folder;
    PrepareSettings settings;
    settings.inputs = {DFLASH_FIXTURES "/data/chat_heldout.jsonl"};
    settings.target = kTarget;
    settings.out = folder.file("deep/er/data/");
    settings.chat_template = {TemplateKind::kChatml, false, "Sys"};
    const PrepareReport report = prepare_dataset(settings);
    EXPECT_EQ(report.rows_in, 200);
    EXPECT_EQ(report.rows_used, 200);
    EXPECT_TRUE(report.refused.empty());

    const Dataset prepared(settings.out);
    EXPECT_EQ(prepared.documents(), 200);
    EXPECT_EQ(prepared.tokens(), report.tokens);
    EXPECT_EQ(prepared.report().supervised_tokens, report.supervised_tokens);
    EXPECT_EQ(prepared.chat_template(), settings.chat_template);
    EXPECT_EQ(prepared.tokenizer_fingerprint(), Tokenizer(kTarget).fingerprint());
    expect_same_documents(prepared, Dataset::from_jsonl(settings));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.file("deep/er")), {}), 1);  // nothing left beside it
}

TEST(Dataset, IsTheSameForAnyNumberOfThreads) {
    const TemporaryFolder folder;
    PrepareSettings settings;
    settings.inputs = {DFLASH_FIXTURES "/data/chat_heldout.jsonl"};
    settings.target = kTarget;
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    const Dataset one = Dataset::from_jsonl(settings);
    omp_set_num_threads(3);
    const Dataset three = Dataset::from_jsonl(settings);
    omp_set_num_threads(threads);
    expect_same_documents(one, three);
}

TEST(Dataset, FingerprintFollowsTheContent) {
    const TemporaryFolder folder;
    const auto fingerprint = [&](const std::string& text) { return Dataset::from_jsonl(settings_for(folder, text)).fingerprint(); };
    const std::string base = fingerprint(lines({ready_line(1, 5), ready_line(9, 4)}));
    EXPECT_EQ(base, fingerprint(lines({ready_line(1, 5), "", ready_line(9, 4)})));
    EXPECT_NE(base, fingerprint(lines({ready_line(9, 4), ready_line(1, 5)})));
    EXPECT_NE(base, fingerprint(lines({ready_line(1, 5), ready_line(9, 4, 1)})));
    EXPECT_NE(base, fingerprint(lines({ready_line(1, 4), ready_line(9, 5)})));
}

// Every odd row is either trained by a stated rule or refused and counted; none stops the others.
TEST(Dataset, CountsRefusedRowsByReason) {
    const TemporaryFolder folder;
    const std::string text =
        lines({chat_line({{"user", "u"}, {"assistant", "an answer"}}), "[]", "{}", R"({"messages":[]})", chat_line({{"system", "s"}}),
               chat_line({{"assistant", "a b c"}, {"user", "u"}}), chat_line({{"user", "u"}, {"assistant", "an answer"}, {"user", "more"}}),
               chat_line({{"user", "u"}, {"user", "v"}, {"assistant", "an answer"}}), "{\"broken", "   ",
               chat_line({{"user", "u"}, {"narrator", "x"}, {"assistant", "a"}}), R"({"input_ids":[1,2,3],"loss_mask":[0,1,0]})",
               R"({"input_ids":[1,4096],"loss_mask":[1,1]})", chat_line({{"user", "say <|im_end|>"}, {"assistant", "an answer"}})});
    const PrepareReport report = prepare_dataset(settings_for(folder, text));
    EXPECT_EQ(report.rows_in, 13);
    EXPECT_EQ(report.rows_used, 4);
    EXPECT_EQ(report.control_text_rows, 1);
    const std::map<std::string, std::int64_t> expected = {{"not a JSON object", 1},
                                                          {"neither messages nor a prompt nor input_ids", 1},
                                                          {"no messages", 1},
                                                          {"no assistant turn", 1},
                                                          {"starts with an assistant turn", 1},
                                                          {"not valid JSON", 1},
                                                          {"unknown role", 1},
                                                          {"no two supervised tokens in a row", 1},
                                                          {"a token id is outside the target's vocabulary", 1}};
    EXPECT_EQ(report.refused, expected);
    EXPECT_EQ(Dataset(folder.file("data")).report().refused, expected);
    EXPECT_EQ(Dataset(folder.file("data")).document_id(1), "7");  // the line stands in for an id
}

TEST(Dataset, StrictMakesAnyRefusalFatal) {
    const TemporaryFolder folder;
    PrepareSettings settings = settings_for(folder, lines({chat_line({{"user", "u"}, {"assistant", "an answer"}}), "{}"}));
    settings.strict = true;
    EXPECT_TRUE(refuses([&] { prepare_dataset(settings); }, {"chats.jsonl line 2", "neither messages"}));
    EXPECT_EQ(folder.num_files(), 1U);
}

TEST(Dataset, RefusesAFileWithoutAnyUsableRow) {
    const TemporaryFolder folder;
    const std::vector<std::string> rows(40, chat_line({{"system", "s"}}));
    EXPECT_TRUE(refuses([&] { prepare_dataset(settings_for(folder, lines(rows))); }, {"0 of 40 rows usable", "40 x no assistant turn"}));
    EXPECT_TRUE(refuses([&] { prepare_dataset(settings_for(folder, "")); }, {"0 of 0 rows usable"}));
    EXPECT_EQ(folder.num_files(), 1U);
    PrepareSettings missing = settings_for(folder, "");
    missing.inputs = {folder.file("none.jsonl")};
    EXPECT_TRUE(refuses([&] { prepare_dataset(missing); }, {"none.jsonl"}));
    missing.inputs = {folder.path()};
    EXPECT_TRUE(refuses([&] { prepare_dataset(missing); }, {folder.path()}));
    missing.inputs = {};
    EXPECT_TRUE(refuses([&] { prepare_dataset(missing); }, {"no data"}));
}

TEST(Dataset, TruncatesAndCounts) {
    const TemporaryFolder folder;
    const PrepareReport report = prepare_dataset(settings_for(
        folder, lines({ready_line(1, 59), ready_line(1, 60), ready_line(1, 61), ready_line(1, 1000), ready_line(1, 100, 60)}), 60));
    EXPECT_EQ(report.rows_used, 4);
    EXPECT_EQ(report.rows_truncated, 2);
    EXPECT_EQ(report.tokens, 59 + 60 + 60 + 60);
    EXPECT_EQ(report.refused.at("the answer lies beyond the length limit"), 1);
    EXPECT_EQ(Dataset(folder.file("data")).document(3).ids.size(), 60U);
}

TEST(Dataset, TakesReadyRowsWithoutATokenizer) {
    const TemporaryFolder folder;
    PrepareSettings settings = settings_for(folder, lines({ready_line(70000, 9), chat_line({{"user", "u"}, {"assistant", "a b"}})}));
    settings.target = folder.path();
    const PrepareReport report = prepare_dataset(settings);
    EXPECT_EQ(report.rows_used, 1);
    EXPECT_EQ(report.refused.at("the target has no tokenizer.json"), 1);
    EXPECT_EQ(Dataset(settings.out).tokenizer_fingerprint(), "");
}

TEST(Dataset, KeepsUnsupervisedRowsOnRequest) {
    const TemporaryFolder folder;
    PrepareSettings settings = settings_for(folder, lines({ready_line(5, 4, 4)}));
    settings.keep_unsupervised = true;
    EXPECT_EQ(Dataset::from_jsonl(settings).documents(), 1);
    settings.keep_unsupervised = false;
    EXPECT_TRUE(refuses([&] { Dataset::from_jsonl(settings); }, {"0 of 1 rows"}));
}

TEST(Dataset, ReadsByteOrderMarksAndWindowsLineEnds) {
    const TemporaryFolder folder;
    const Dataset plain = Dataset::from_jsonl(settings_for(folder, lines({ready_line(1, 5), ready_line(2, 5)})));
    const Dataset windows = Dataset::from_jsonl(settings_for(folder, "\xEF\xBB\xBF" + ready_line(1, 5) + "\r\n\r\n" + ready_line(2, 5)));
    EXPECT_EQ(plain.fingerprint(), windows.fingerprint());
}

TEST(Dataset, ReplacesAPreparedFolderButNothingElse) {
    const TemporaryFolder folder;
    const PrepareSettings first = settings_for(folder, lines({ready_line(1, 5)}));
    prepare_dataset(first);
    const std::string before = Dataset(first.out).fingerprint();
    const PrepareSettings second = settings_for(folder, lines({ready_line(1, 6)}));
    prepare_dataset(second);
    EXPECT_NE(Dataset(first.out).fingerprint(), before);
    // A failed run leaves what was there.
    const std::string kept = Dataset(first.out).fingerprint();
    EXPECT_TRUE(refuses([&] { prepare_dataset(settings_for(folder, "{}\n")); }, {"0 of 1"}));
    EXPECT_EQ(Dataset(first.out).fingerprint(), kept);
    // A folder of something else is not touched.
    std::filesystem::create_directory(folder.file("photos"));
    folder.write("photos/cat.png", "x");
    PrepareSettings wrong = settings_for(folder, lines({ready_line(1, 5)}));
    wrong.out = folder.file("photos");
    EXPECT_TRUE(refuses([&] { prepare_dataset(wrong); }, {"photos", "no prepared data set"}));
    EXPECT_TRUE(std::filesystem::exists(folder.file("photos/cat.png")));
    wrong.out = folder.file("chats.jsonl");
    EXPECT_TRUE(refuses([&] { prepare_dataset(wrong); }, {"chats.jsonl"}));
}

TEST(Dataset, RemovesWhatAKilledRunLeft) {
    const TemporaryFolder folder;
    std::filesystem::create_directory(folder.file("data.partial-999999999"));
    folder.write("data.partial-999999999/shard-00000.safetensors", "half");
    EXPECT_TRUE(refuses([&] { Dataset(folder.file("data")); }, {"no prepared data set"}));
    prepare_dataset(settings_for(folder, lines({ready_line(1, 5)})));
    EXPECT_EQ(folder.num_files(), 2U);  // the rows and the data set
}

TEST(Dataset, AnUnwritablePlaceIsAnError) {
    const TemporaryFolder folder;
    PrepareSettings settings = settings_for(folder, lines({ready_line(1, 5)}));
    settings.out = folder.file("chats.jsonl/data");
    EXPECT_TRUE(testing::refuses([&] { prepare_dataset(settings); }, {"chats.jsonl/data", "no folder"}));
    EXPECT_EQ(folder.num_files(), 1U);
}

// A disk that runs full, by way of the limit on the size of files.
TEST(Dataset, AFullDiskLeavesWhatWasThere) {
    const TemporaryFolder folder;
    prepare_dataset(settings_for(folder, lines({ready_line(1, 5)})));
    const std::string kept = Dataset(folder.file("data")).fingerprint();
    const PrepareSettings larger = settings_for(folder, lines(std::vector<std::string>(100, ready_line(1, 500))));
    rlimit unlimited{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &unlimited), 0);
    const auto on_signal = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit tight{.rlim_cur = 16384, .rlim_max = unlimited.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
    const auto failed = testing::throws(ErrorKind::kFailed, [&] { prepare_dataset(larger); }, {"data"});
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &unlimited), 0);
    ::signal(SIGXFSZ, on_signal);
    EXPECT_TRUE(failed);
    EXPECT_EQ(Dataset(folder.file("data")).fingerprint(), kept);
    EXPECT_EQ(folder.num_files(), 2U);
}

// One byte cut, added or changed anywhere in a shard, or in the manifest's account of it, is noticed.
TEST(Dataset, RefusesAChangedShard) {
    const TemporaryFolder folder;
    const PrepareSettings settings = settings_for(folder, lines({ready_line(1, 300), ready_line(5, 40)}));
    prepare_dataset(settings);
    const std::string shard = settings.out + "/shard-00000.safetensors";
    const std::string content = read_file(shard);
    const auto expect_refused = [&](const std::string& changed, const char* fragment) {
        std::ofstream(shard, std::ios::binary) << changed;
        EXPECT_TRUE(refuses([&] { Dataset(settings.out); }, {"shard-00000.safetensors", fragment}));
    };
    expect_refused(content.substr(0, content.size() - 1), "bytes");
    expect_refused(content + "x", "bytes");
    expect_refused("", "bytes");
    for (std::size_t at = 0; at < content.size(); at += 37) {
        std::string changed = content;
        changed[at] = static_cast<char>(changed[at] ^ 1);
        expect_refused(changed, "checksum");
    }
    std::filesystem::remove(shard);
    EXPECT_TRUE(refuses([&] { Dataset(settings.out); }, {"shard-00000.safetensors", "prepare the data again"}));
    std::ofstream(shard, std::ios::binary) << content;
    EXPECT_EQ(Dataset(settings.out).documents(), 2);

    const std::string manifest = settings.out + "/manifest.json";
    const Json good = read_json_file(manifest);
    for (const char* edit : {"/shards/0/documents", "/shards/0/tokens", "/shards/0/bytes", "/shards/0/crc32c", "/tokens", "/version"}) {
        Json bad = good;
        bad[Json::json_pointer(edit)] = bad[Json::json_pointer(edit)].get<std::int64_t>() + 1;
        std::ofstream(manifest) << bad.dump();
        EXPECT_TRUE(refuses([&] { Dataset(settings.out); }, {settings.out})) << edit;
    }
    for (const char* text : {"", "{}", R"({"format":"other"})"}) {
        std::ofstream(manifest) << text;
        EXPECT_TRUE(refuses([&] { Dataset(settings.out); }, {"manifest.json"})) << text;
    }
}

}  // namespace
}  // namespace dflash
