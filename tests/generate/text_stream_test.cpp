// SPDX-License-Identifier: MIT
#include "generate/text_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace dflash {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

// The text of pieces of one byte each, and that nothing incomplete ever came out.
std::string by_bytes(const std::string& text) {
    Utf8Joiner joiner;
    std::string joined;
    for (const char byte : text) joined += joiner.push(std::string_view(&byte, 1));
    return joined + joiner.finish();
}

TEST(Utf8Joiner, HoldsACharacterBackUntilItIsWhole) {
    Utf8Joiner joiner;
    EXPECT_EQ(joiner.push("a\xE4"), "a");
    EXPECT_EQ(joiner.push("\xB8"), "");
    EXPECT_EQ(joiner.push("\xAD"
                          "b"),
              "\xE4\xB8\xAD"
              "b");
    EXPECT_EQ(joiner.push("\xF0\x9F\x98"), "");
    EXPECT_EQ(joiner.push("\x80\xC3"), "\xF0\x9F\x98\x80");
    EXPECT_EQ(joiner.finish(), kBad);
    EXPECT_EQ(joiner.finish(), "");
}

TEST(Utf8Joiner, GivesTheSameTextByteByByte) {
    for (const std::string& text : {std::string("plain"), std::string("\xC3\xA4\xE4\xB8\xAD\xF0\x9F\x98\x80!"), std::string()}) {
        EXPECT_EQ(by_bytes(text), text);
    }
}

TEST(Utf8Joiner, ReplacesBytesThatFormNoCharacter) {
    Utf8Joiner joiner;
    EXPECT_EQ(joiner.push("\xFFz"), kBad + "z");
    EXPECT_EQ(joiner.push("\xE4"
                          "x"),
              kBad + "x");
    EXPECT_EQ(joiner.push("\x80\x80\x80\x80"), kBad + kBad + kBad + kBad);
    EXPECT_EQ(joiner.finish(), "");
    EXPECT_EQ(by_bytes("\xE4x\xC3"), kBad + "x" + kBad);
}

class TinyTokenizer : public ::testing::Test {
protected:
    Tokenizer tokenizer_{std::string(DFLASH_FIXTURES) + "/tiny-qwen3/tokenizer.json"};
};

TEST_F(TinyTokenizer, StreamsWhatItEncoded) {
    const std::string text = "def f():\n    return \"\xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\x98\x80\"\n";
    const std::vector<std::int32_t> ids = tokenizer_.encode(text);
    TextStream stream(tokenizer_);
    std::string streamed;
    for (const std::int32_t id : ids) streamed += stream.push({&id, 1});
    EXPECT_EQ(streamed + stream.finish(), text);
    EXPECT_EQ(output_text(tokenizer_, ids), text);
}

TEST_F(TinyTokenizer, SpecialAndUnknownTokensGiveNoText) {
    std::vector<std::int32_t> ids = tokenizer_.encode("x");
    ids.push_back(4094);  // <|im_end|>
    ids.push_back(static_cast<std::int32_t>(tokenizer_.vocabulary_size()));
    EXPECT_EQ(output_text(tokenizer_, ids), "x");
    EXPECT_EQ(output_text(tokenizer_, {}), "");
}

}  // namespace
}  // namespace dflash
