// SPDX-License-Identifier: MIT
#include "io/tokenizer.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "io/json.h"
#include "io/unicode.h"
#include "support/errors.h"
#include "support/public_fixtures.h"
#include "support/small_tokenizer.h"

namespace dflash {
namespace {

using testing::public_fixtures;
using testing::refuses;
using testing::SmallTokenizer;
using Ids = std::vector<std::int32_t>;

const Tokenizer& tiny() {
    static const Tokenizer tokenizer(DFLASH_FIXTURES "/tiny-qwen3.5");
    return tokenizer;
}

const Tokenizer& qwen3() {
    static const Tokenizer tokenizer(public_fixtures() + "/qwen3-tokenizer");
    return tokenizer;
}

std::string repeated(const std::string& unit, std::size_t times) {
    std::string text;
    text.reserve(unit.size() * times);
    for (std::size_t i = 0; i < times; ++i) text += unit;
    return text;
}

TEST(Tokenizer, AgreesWithGoldenIdsAndDecodesThem) {
    const Json golden = read_json_file(DFLASH_FIXTURES "/golden/tokenizer.json");
    ASSERT_GE(golden.size(), 10U);
    for (const Json& entry : golden) {
        const auto text = entry.at("text").get<std::string>();
        EXPECT_EQ(tiny().encode(text), entry.at("ids").get<Ids>()) << text;
        EXPECT_EQ(tiny().decode(entry.at("ids").get<Ids>()), entry.at("decoded").get<std::string>());
    }
}

TEST(Tokenizer, CountsWhatItRead) {
    EXPECT_EQ(tiny().vocabulary_size(), 4096);
    EXPECT_EQ(tiny().num_merges(), 3836);
    EXPECT_EQ(tiny().added_tokens().size(), 4U);
    EXPECT_EQ(tiny().token_id("<|im_end|>"), 4094);
    EXPECT_EQ(tiny().token_id("no such token"), std::nullopt);
    EXPECT_EQ(tiny().fingerprint().size(), 64U);
}

TEST(Tokenizer, AgreesWithTheIdsOfTheRealTokenizer) {
    DFLASH_NEEDS_PUBLIC_FIXTURES();
    EXPECT_EQ(qwen3().num_merges(), 151387);
    EXPECT_EQ(qwen3().vocabulary_size(), 151669);
    EXPECT_EQ(qwen3().encode("12345 ½ ４２"), (Ids{16, 17, 18, 19, 20, 220, 26062, 220, 45602, 24918}));
    EXPECT_EQ(qwen3().encode("->(x):\r\n\t"), (Ids{405, 7, 87, 5783, 197}));
    EXPECT_EQ(qwen3().encode("don't DON'T I'LL"), (Ids{15007, 944, 44273, 17323, 358, 6, 4086}));
    EXPECT_EQ(qwen3().encode("<think>\n</think>"), (Ids{151667, 198, 151668}));
}

// U+180E is no white space: it makes one word with the sign behind it. U+0085 is.
TEST(Tokenizer, TakesWhiteSpaceAsUnicodeDoes) {
    SmallTokenizer small;
    small.add_merge("\u0130", "!");  // the last byte of U+180E and a sign
    small.add_merge("\u0127", "!");  // and of U+0085
    const Tokenizer tokenizer = small.build();
    EXPECT_EQ(tokenizer.encode("\u180e!").size(), 3U);
    EXPECT_EQ(tokenizer.encode("\u0085!").size(), 3U);
    EXPECT_EQ(tokenizer.encode("\u180e!").back(), *tokenizer.token_id("\u0130!"));
    EXPECT_EQ(tokenizer.encode("\u0085!").back(), *tokenizer.token_id("!"));
}

TEST(Tokenizer, NormalizesAroundAddedTokensOnly) {
    EXPECT_EQ(tiny().encode("e\u0301"), tiny().encode("é"));
    EXPECT_EQ(tiny().encode("\u212b"), tiny().encode("Å"));
    EXPECT_EQ(tiny().encode("\u1112\u1161\u11ab"), tiny().encode("한"));
    // The mark stands behind an added token and has nothing to join.
    const Ids ids = tiny().encode("<|im_end|>\u0301");
    EXPECT_EQ(ids.front(), 4094);
    EXPECT_EQ(tiny().decode(ids), "<|im_end|>\u0301");
}

TEST(Tokenizer, KeepsControlTextPlainOnRequest) {
    const std::string text = "ok <|im_end|>\n<|im_start|>assistant\nyes";
    const Ids ids = tiny().encode(text, false);
    for (const std::int32_t id : ids) EXPECT_LT(id, 4092);
    EXPECT_EQ(tiny().decode(ids), text);
    EXPECT_EQ(tiny().encode(text)[tiny().encode("ok ").size()], 4094);
}

TEST(Tokenizer, FindsTheLongestAddedToken) {
    SmallTokenizer small;
    small.add_token("<a>", 300).add_token("<a>b", 301).add_token("a>", 302);
    const Tokenizer tokenizer = small.build();
    EXPECT_EQ(tokenizer.encode("<a>b<a>a>"), (Ids{301, 300, 302}));
    const auto spans = tokenizer.find_added_tokens("x<a>b");
    ASSERT_EQ(spans.size(), 1U);
    EXPECT_EQ(spans[0].begin, 1U);
    EXPECT_EQ(spans[0].end, 5U);
    EXPECT_EQ(spans[0].token->id, 301);
}

TEST(Tokenizer, DecodeSkipsSpecialTokensOnRequestAndRefusesUnknownIds) {
    const Ids ids = tiny().encode("<|im_start|>def f<|im_end|>");
    EXPECT_EQ(tiny().decode(ids), "<|im_start|>def f<|im_end|>");
    EXPECT_EQ(tiny().decode(ids, true), "def f");
    EXPECT_TRUE(refuses([] { (void)tiny().decode({4096}); }, {"tokenizer.json", "4096"}));
    EXPECT_TRUE(refuses([] { (void)tiny().token_bytes(-1); }, {"-1"}));
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
    EXPECT_TRUE(refuses([] { (void)tiny().encode("abc\xff"); }, {"not UTF-8 at byte 3"}));
    EXPECT_TRUE(refuses([] { (void)tiny().encode("\xed\xa0\x80"); }, {"byte 0"}));  // a surrogate
    EXPECT_TRUE(refuses([] { (void)tiny().encode("\xc0\x80"); }, {"byte 0"}));      // overlong
    EXPECT_TRUE(refuses([] { (void)tiny().encode("a\xe2\x82"); }, {"byte 1"}));     // cut short
}

// Both spellings of merges, and the pairs whose parts hold a space, which only the second can spell.
TEST(Tokenizer, ReadsBothSpellingsOfMerges) {
    SmallTokenizer small;
    small.add_merge("h", "e").add_merge("l", "l").add_merge("he", "ll").add_merge("hell", "o");
    const Tokenizer as_strings = small.build();
    const Tokenizer as_pairs = small.merges_as_pairs().build();
    EXPECT_EQ(as_strings.num_merges(), 4);
    EXPECT_EQ(as_pairs.num_merges(), 4);
    for (const char* text : {"hello", "hell", "helo", "xhellox", "llll", "hellohello"}) {
        EXPECT_EQ(as_strings.encode(text), as_pairs.encode(text)) << text;
    }
    EXPECT_EQ(as_strings.encode("hello"), (Ids{*as_strings.token_id("hello")}));

    small.add_merge("a b", "c");
    EXPECT_EQ(small.build().num_merges(), 5);
}

TEST(Tokenizer, RefusesMergesItCannotRead) {
    for (const char* bad : {R"("abc")", R"("a  b")", R"("a b c")", R"(["a"])", R"(["a","b","c"])", R"([1,2])", R"(" b")", R"(["","b"])",
                            "null", R"({"a":"b"})", R"("a zzz")"}) {
        SmallTokenizer small;
        small.add_merge("h", "e").add_raw_merge(bad);
        EXPECT_TRUE(refuses([&] { small.build(); }, {"small.json", "merge 1"})) << bad;
    }
    EXPECT_TRUE(refuses([] { SmallTokenizer().without("model", "merges").build(); }, {"model.merges must be a list"}));
    EXPECT_EQ(SmallTokenizer().build().num_merges(), 0);  // a stated empty list is a byte tokenizer
}

TEST(Tokenizer, RefusesPartsThatWouldChangeTheIds) {
    struct Case {
        const char* pointer;
        const char* value;
        const char* fragment;
    };
    for (const Case& c : {Case{"/model/type", R"("Unigram")", "Unigram"},
                          Case{"/model/byte_fallback", "true", "byte_fallback"},
                          Case{"/model/dropout", "0.1", "dropout"},
                          Case{"/model/end_of_word_suffix", R"("</w>")", "end_of_word_suffix"},
                          Case{"/normalizer", R"({"type":"NFKC"})", "NFKC"},
                          Case{"/pre_tokenizer", R"({"type":"Metaspace"})", "Metaspace"},
                          Case{"/pre_tokenizer", "null", "ByteLevel"},
                          Case{"/decoder", R"({"type":"WordPiece"})", "WordPiece"},
                          Case{"/pre_tokenizer/pretokenizers/0/behavior", R"("Removed")", "Removed"},
                          Case{"/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("(?<x")", "split pattern"},
                          Case{"/model/vocab/!", "-1", "'!'"},
                          Case{"/model/vocab/!", "1.5", "'!'"},
                          Case{"/model/vocab/!", "99999999", "'!'"},
                          Case{"/model/vocab/!", "34", "34"},
                          Case{"/model/vocab", "[]", "model.vocab"},
                          Case{"/model", "3", "'model'"},
                          Case{"/added_tokens", R"([{"id":300,"content":"x","lstrip":true}])", "lstrip"},
                          Case{"/added_tokens", R"([{"id":300,"content":""}])", "empty"},
                          Case{"/added_tokens", R"([{"content":"x"}])", "'x'"},
                          Case{"/added_tokens", R"([{"id":65,"content":"x"}])", "65"},
                          Case{"/added_tokens", R"({})", "list"}}) {
        EXPECT_TRUE(refuses([&] { SmallTokenizer().set(c.pointer, c.value).build(); }, {"small.json", c.fragment}))
            << c.pointer << " " << c.value;
    }
    EXPECT_TRUE(refuses([] { Tokenizer::from_json("[]", "small.json"); }, {"small.json"}));
    EXPECT_TRUE(refuses([] { Tokenizer("/no/such/folder"); }, {"/no/such/folder"}));
}

TEST(Tokenizer, RefusesABytesWithoutAToken) {
    const Tokenizer tokenizer = SmallTokenizer().without("/model/vocab", "x").build();
    EXPECT_EQ(tokenizer.encode("abc").size(), 3U);
    EXPECT_TRUE(refuses([&] { (void)tokenizer.encode("axc"); }, {"0x78"}));
}

// Llama 3's way: digits in threes, and a word that is in the vocabulary is taken whole even where merges would not reach it.
TEST(Tokenizer, TakesWholeWordsWithIgnoreMerges) {
    SmallTokenizer small;
    small.add_word("abc", 300).add_word("123", 301);
    small.set("/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("\\p{L}+|\\p{N}{1,3}|\\s+")");
    EXPECT_EQ(small.build().encode("abc1234").size(), 7U);
    small.set("/model/ignore_merges", "true");
    const Tokenizer tokenizer = small.build();
    EXPECT_EQ(tokenizer.encode("abc1234"), (Ids{300, 301, *tokenizer.token_id("4")}));
    EXPECT_EQ(tokenizer.encode("abcd").size(), 4U);
}

TEST(Tokenizer, AppliesSplitsOneAfterAnother) {
    SmallTokenizer small;
    small.add_merge("1", "2").add_merge("2", "2").add_merge("a", "1");
    small.set("/pre_tokenizer", R"({"type":"Sequence","pretokenizers":[
        {"type":"Digits","individual_digits":true},
        {"type":"Split","pattern":{"String":"a"},"behavior":"Isolated","invert":false},
        {"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})");
    const Tokenizer tokenizer = small.build();
    EXPECT_EQ(tokenizer.encode("a122").size(), 4U);
    small.set("/pre_tokenizer", R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true})");
    EXPECT_EQ(small.build().encode("a122").size(), 3U);  // a | 12 2
}

// Lowest rank first, the leftmost of equals; merges of merges.
TEST(Tokenizer, MergesByRankThenFromTheLeft) {
    SmallTokenizer small;
    small.add_merge("b", "c").add_merge("a", "b").add_merge("a", "a").add_merge("aa", "a");
    const Tokenizer tokenizer = small.build();
    const auto id = [&](const char* token) { return *tokenizer.token_id(token); };
    EXPECT_EQ(tokenizer.encode("abc"), (Ids{id("a"), id("bc")}));
    EXPECT_EQ(tokenizer.encode("aab"), (Ids{id("a"), id("ab")}));
    EXPECT_EQ(tokenizer.encode("aaa"), (Ids{id("aaa")}));
    EXPECT_EQ(tokenizer.encode("aaaa"), (Ids{id("aa"), id("aa")}));
    EXPECT_EQ(tokenizer.encode("aaaaa"), (Ids{id("aa"), id("aaa")}));
}

struct LongText {
    const char* name;
    std::string text;
    std::size_t tiny_ids, qwen3_ids;  // as the `tokenizers` library gives
};

const std::vector<LongText>& long_texts() {
    static const std::vector<LongText> texts = {{"equal letters", std::string(43000, 'A'), 43000, 5375},
                                                {"more equal letters", std::string(100000, 'x'), 100000, 12500},
                                                {"spaces", std::string(200000, ' '), 6250, 1563},
                                                {"newlines", std::string(200000, '\n'), 100000, 6250},
                                                {"20,000 newlines", std::string(20000, '\n'), 10000, 625},
                                                {"20,000 spaces", std::string(20000, ' '), 625, 157},
                                                {"CJK", repeated("日", 100000), 300000, 100000},
                                                {"letters with marks", repeated("a\u0301", 100000), 200000, 100000},
                                                {"one letter with many marks", "a" + repeated("\u0301\u0316", 50000), 200000, 150000},
                                                {"blank lines", repeated("\n \n\r\n", 5000), 20001, 10000}};
    return texts;
}

// Runs on a thread with a small stack, as some thread pools have.
void run_on_small_stack(const std::function<void()>& work) {
    struct Task {
        const std::function<void()>* work;
        std::exception_ptr error;
    } task{&work, nullptr};
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    ASSERT_EQ(pthread_attr_setstacksize(&attributes, std::size_t{256} << 10), 0);
    pthread_t thread{};
    const auto body = [](void* argument) -> void* {
        auto* running = static_cast<Task*>(argument);
        try {
            (*running->work)();
        } catch (...) {
            running->error = std::current_exception();
        }
        return nullptr;
    };
    ASSERT_EQ(pthread_create(&thread, &attributes, body, &task), 0);
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
    if (task.error) std::rethrow_exception(task.error);
}

TEST(Tokenizer, TakesLongRunsOnASmallStack) {
    for (const LongText& c : long_texts()) {
        std::size_t ids = 0;
        run_on_small_stack([&] { ids = tiny().encode(c.text).size(); });
        EXPECT_EQ(ids, c.tiny_ids) << c.name;
    }
}

TEST(Tokenizer, TakesLongRunsOnASmallStackWithTheRealTokenizer) {
    DFLASH_NEEDS_PUBLIC_FIXTURES();
    (void)qwen3();
    for (const LongText& c : long_texts()) {
        std::size_t ids = 0;
        run_on_small_stack([&] { ids = qwen3().encode(c.text).size(); });
        EXPECT_EQ(ids, c.qwen3_ids) << c.name;
    }
}

double seconds_to_encode(const std::string& text) {
    const auto start = std::chrono::steady_clock::now();
    (void)tiny().encode(text);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// 16 times the text may take about 16 times as long; quadratic time would take 256 times as long.
TEST(Tokenizer, TimeGrowsLinearly) {
    for (const char* unit : {"x", " ", "\n", "日", "ab ", "\u0301\u0316", "<"}) {
        const std::string text = repeated(unit, 20000);
        (void)seconds_to_encode(text);  // first touch
        const double once = seconds_to_encode(text);
        const double longer = seconds_to_encode(repeated(text, 16));
        EXPECT_LT(longer, 80 * once + 0.05) << "'" << unit << "'";
    }
}

TEST(Tokenizer, EmptyAndBlankTexts) {
    EXPECT_TRUE(tiny().encode("").empty());
    EXPECT_TRUE(tiny().encode("", false).empty());
    EXPECT_EQ(tiny().decode({}), "");
    for (const char* text : {" ", "\n", "\t", "\r\n", " \n \t ", "\u2003"}) EXPECT_EQ(tiny().decode(tiny().encode(text)), text);
    const std::string zero("a\0b", 3);
    EXPECT_EQ(tiny().decode(tiny().encode(zero)), zero);
}

TEST(Unicode, PutsTextIntoNfc) {
    EXPECT_EQ(to_nfc("plain"), "plain");
    EXPECT_EQ(to_nfc("e\u0301\u0327"), "\u0229\u0301");   // marks sorted by class, then joined
    EXPECT_EQ(to_nfc("\u0958"), "\u0915\u093c");          // excluded from composition
    EXPECT_EQ(to_nfc("\u1100\u1161\u11a8"), "\uac01");    // Hangul
    EXPECT_EQ(to_nfc("q\u0307\u0323"), "q\u0323\u0307");  // sorted, nothing to join
    EXPECT_EQ(to_nfc("\u0344"), "\u0308\u0301");
}

}  // namespace
}  // namespace dflash
