// SPDX-License-Identifier: MIT
#include "data/chat.h"

#include <gtest/gtest.h>

#include <string>

#include "data/row_error.h"
#include "support/errors.h"

namespace dflash {
namespace {

using testing::refuses;

ChatRow parse(const std::string& line) { return parse_chat_row(line, "chats.jsonl line 7"); }

TEST(Chat, ReadsBothSpellings) {
    const ChatRow openai =
        parse(R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"},{"role":"assistant","content":"a"}]})");
    const ChatRow sharegpt =
        parse(R"({"conversations":[{"from":"system","value":"s"},{"from":"human","value":"u"},{"from":"gpt","value":"a"}]})");
    const ChatRow mixed_names =
        parse(R"({"conversations":[{"role":"system","content":"s"},{"role":"user","content":"u"},{"role":"assistant","content":"a"}]})");
    for (const ChatRow& row : {openai, sharegpt, mixed_names}) {
        ASSERT_EQ(row.messages.size(), 3U);
        EXPECT_EQ(row.messages[0].role, "system");
        EXPECT_EQ(row.messages[1].role, "user");
        EXPECT_EQ(row.messages[2].role, "assistant");
        EXPECT_EQ(row.messages[2].content, "a");
        EXPECT_EQ(row.id, "7");
    }
}

TEST(Chat, ReadsIds) {
    const std::string rest = R"(,"messages":[{"role":"user","content":"u"}]})";
    EXPECT_EQ(parse(R"({"id":"x")" + rest).id, "x");
    EXPECT_EQ(parse(R"({"id":12)" + rest).id, "12");
    EXPECT_EQ(parse(R"({"conversation_id":"c")" + rest).id, "c");
    EXPECT_EQ(parse(R"({"task_id":"t/1","prompt":"p"})").id, "t/1");
    EXPECT_EQ(parse(R"({"id":null)" + rest).id, "7");
}

TEST(Chat, ReadsTextParts) {
    const ChatRow row = parse(R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},"b",{"text":"c"}]}]})");
    EXPECT_EQ(row.messages[0].content, "abc");
}

TEST(Chat, ReadsToolsCallsAndReasoning) {
    const ChatRow row = parse(R"({"tools":[{"z":1,"a":2}],"messages":[{"role":"user","content":"u"},
        {"role":"assistant","content":null,"reasoning":"r","tool_calls":[{"type":"function","function":{"name":"f","arguments":{"y":1,"b":2}}}]},
        {"role":"tool","content":"t"},{"from":"observation","value":"o"},{"role":"assistant","content":"done","reasoning_content":"q"}]})");
    ASSERT_EQ(row.messages.size(), 5U);
    EXPECT_EQ(row.tools, R"([{"z":1,"a":2}])");  // keys keep their order
    EXPECT_EQ(row.messages[1].tool_calls, R"([{"type":"function","function":{"name":"f","arguments":{"y":1,"b":2}}}])");
    EXPECT_EQ(row.messages[1].reasoning, "r");
    EXPECT_EQ(row.messages[2].role, "tool");
    EXPECT_EQ(row.messages[3].role, "tool");
    EXPECT_EQ(row.messages[4].reasoning, "q");
    EXPECT_EQ(parse(R"({"tools":"[{\"a\":1}]","messages":[{"role":"user","content":"u"}]})").tools, R"([{"a":1}])");
    EXPECT_EQ(parse(R"({"tools":[],"messages":[{"role":"user","content":"u"}]})").tools, "");
}

TEST(Chat, ReadsTheRowsOwnSystemText) {
    const ChatRow row = parse(R"({"system":"s","conversations":[{"from":"human","value":"u"}]})");
    ASSERT_EQ(row.messages.size(), 2U);
    EXPECT_EQ(row.messages[0].role, "system");
    EXPECT_EQ(row.messages[0].content, "s");
}

TEST(Chat, ReadsReadyRowsAndPrompts) {
    const ChatRow ready = parse(R"({"input_ids":[1,2,3],"loss_mask":[0,1,true]})");
    EXPECT_EQ(ready.input_ids, (std::vector<std::int32_t>{1, 2, 3}));
    EXPECT_EQ(ready.loss_mask, (std::vector<std::uint8_t>{0, 1, 1}));
    EXPECT_EQ(parse(R"({"prompt":"text"})").prompt, "text");
    EXPECT_EQ(parse(R"({"prompt":"text","prompt_ids":[5]})").prompt_ids, (std::vector<std::int32_t>{5}));
    // Ready ids win over messages; without a mask the messages count.
    EXPECT_TRUE(parse(R"({"input_ids":[1],"loss_mask":[1],"messages":[{"role":"user","content":"u"}]})").messages.empty());
    EXPECT_TRUE(parse(R"({"input_ids":[1],"messages":[{"role":"user","content":"u"}]})").input_ids.empty());
}

// Never half a row: each is refused with its reason.
TEST(Chat, RefusesWhatItDoesNotUnderstand) {
    struct Case {
        const char* line;
        const char* reason;
    };
    for (const Case& c : {
             Case{"", "not valid JSON"},
             Case{"{", "not valid JSON"},
             Case{R"({"messages":[],"messages":[]})", "not valid JSON"},
             Case{"{\"prompt\":\"\xff\"}", "not valid JSON"},
             Case{R"({"prompt":"\ud800"})", "not valid JSON"},
             Case{"[]", "not a JSON object"},
             Case{"{}", "neither messages nor a prompt nor input_ids"},
             Case{R"({"text":"x"})", "neither messages nor a prompt nor input_ids"},
             Case{R"({"messages":[]})", "no messages"},
             Case{R"({"messages":{}})", "messages is not a list"},
             Case{R"({"messages":"[]"})", "messages is not a list"},
             Case{R"({"messages":[1]})", "a message is not an object"},
             Case{R"({"messages":[{"role":"user","content":"u"}],"conversations":[]})", "both messages and conversations"},
             Case{R"({"messages":[{"role":"narrator","content":"u"}]})", "unknown role"},
             Case{R"({"messages":[{"role":7,"content":"u"}]})", "a role is not a string"},
             Case{R"({"messages":[{"content":"u"}]})", "a message has no role"},
             Case{R"({"messages":[{"role":"user"}]})", "a message has no content"},
             Case{R"({"messages":[{"role":"assistant","content":null}]})", "a message has no content"},
             Case{R"({"messages":[{"role":"user","value":"u"}]})", "a message mixes"},
             Case{R"({"messages":[{"from":"human","content":"u"}]})", "a message mixes"},
             Case{R"({"messages":[{"role":"user","from":"human","content":"u"}]})", "both role and from"},
             Case{R"({"messages":[{"role":"user","content":5}]})", "content is neither"},
             Case{R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":"x"}]}]})", "a content part is not text"},
             Case{R"({"messages":[{"role":"user","content":[{"type":"image","text":"x"}]}]})", "a content part is not text"},
             Case{R"({"messages":[{"role":"user","content":[5]}]})", "a content part is neither"},
             Case{R"({"messages":[{"role":"assistant","content":"x","function_call":{"name":"f"}}]})", "function_call is not supported"},
             Case{R"({"messages":[{"role":"user","content":"x","tool_calls":[{"name":"f"}]}]})", "outside an assistant turn"},
             Case{R"({"messages":[{"role":"user","content":"x","reasoning":"r"}]})", "outside an assistant turn"},
             Case{R"({"messages":[{"role":"assistant","content":"x","tool_calls":[{}]}]})", "a tool call has no name"},
             Case{R"({"messages":[{"role":"assistant","content":"x","tool_calls":[3]}]})", "a tool call has no name"},
             Case{R"({"messages":[{"role":"assistant","content":"x","tool_calls":{"name":"f"}}]})", "tool_calls is not a list"},
             Case{R"({"messages":[{"role":"assistant","content":"x","tool_calls":[{"name":"f","arguments":3}]}]})",
                  "arguments are neither"},
             Case{R"({"messages":[{"role":"assistant","content":"x","reasoning":3}]})", "reasoning is not a string"},
             Case{R"({"tools":3,"messages":[{"role":"user","content":"u"}]})", "tools is not a list"},
             Case{R"({"tools":"x","messages":[{"role":"user","content":"u"}]})", "holds no JSON"},
             Case{R"({"tools":[3],"messages":[{"role":"user","content":"u"}]})", "a tool is not an object"},
             Case{R"({"system":"s","messages":[{"role":"system","content":"u"}]})", "two system texts"},
             Case{R"({"system":3,"messages":[{"role":"user","content":"u"}]})", "system is not a string"},
             Case{R"({"prompt":["x"]})", "prompt is not a string"},
             Case{R"({"input_ids":[1,2]})", "input_ids without loss_mask"},
             Case{R"({"input_ids":[1,2],"loss_mask":[1]})", "differ in length"},
             Case{R"({"input_ids":[],"loss_mask":[]})", "no tokens"},
             Case{R"({"input_ids":[-1],"loss_mask":[1]})", "a token id is not"},
             Case{R"({"input_ids":[2147483648],"loss_mask":[1]})", "a token id is not"},
             Case{R"({"input_ids":[1.5],"loss_mask":[1]})", "a token id is not"},
             Case{R"({"input_ids":5,"loss_mask":[1]})", "token ids are not a list"},
             Case{R"({"input_ids":[1],"loss_mask":[2]})", "loss_mask holds"},
             Case{R"({"input_ids":[1],"loss_mask":["1"]})", "loss_mask holds"},
             Case{R"({"prompt_ids":"x"})", "token ids are not a list"},
         }) {
        EXPECT_TRUE(refuses([&] { parse(c.line); }, {"chats.jsonl line 7: ", c.reason})) << c.line;
        EXPECT_THROW(parse(c.line), RowError) << c.line;
    }
}

}  // namespace
}  // namespace dflash
