// SPDX-License-Identifier: MIT
// A checked conversation and the writers of the four template families. Each writes the whole conversation, or, with
// `is_prompt`, everything up to where the target starts to answer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/chat.h"
#include "data/chat_template.h"
#include "data/chat_writer.h"

namespace dflash {

struct Conversation {
    std::string where;                  // for errors
    std::vector<ChatMessage> messages;  // with the default system message, if any
    std::string tools;                  // JSON array, empty when none
    bool thinking = false;
    bool is_prompt = false;
};

void write_chatml(const Conversation& conversation, ChatWriter& writer);
void write_qwen3(const Conversation& conversation, ChatWriter& writer);
void write_qwen35(const Conversation& conversation, ChatWriter& writer);
void write_llama3(const Conversation& conversation, ChatWriter& writer);

// Without characters of `set` at the ends.
std::string_view strip(std::string_view text, std::string_view set);
std::string_view strip_left(std::string_view text, std::string_view set);
std::string_view strip_right(std::string_view text, std::string_view set);
// Without white space at the ends, as Python's str.strip (what the templates' `trim` does).
std::string_view trim(std::string_view text);

}  // namespace dflash
