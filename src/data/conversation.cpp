// SPDX-License-Identifier: MIT
#include "data/conversation.h"

#include <algorithm>
#include <array>

#include "data/row_error.h"

namespace dflash {

namespace {

// Python's white space beyond one byte, in UTF-8.
constexpr std::array<std::string_view, 19> kWideSpaces = {"\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003",
                                                          "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
                                                          "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};

bool is_narrow_space(char c) { return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20); }

}  // namespace

std::string_view strip_left(std::string_view text, std::string_view set) {
    return text.substr(std::min(text.find_first_not_of(set), text.size()));
}

std::string_view strip_right(std::string_view text, std::string_view set) { return text.substr(0, text.find_last_not_of(set) + 1); }

std::string_view strip(std::string_view text, std::string_view set) { return strip_left(strip_right(text, set), set); }

std::string_view trim(std::string_view text) {
    const auto cut = [&](auto has_wide, auto remove) {
        for (bool again = true; again;) {
            again = false;
            for (const std::string_view space : kWideSpaces) {
                if (!has_wide(space)) continue;
                remove(space.size());
                again = true;
            }
        }
    };
    for (std::size_t before = text.size() + 1; before != text.size();) {
        before = text.size();
        while (!text.empty() && is_narrow_space(text.front())) text.remove_prefix(1);
        while (!text.empty() && is_narrow_space(text.back())) text.remove_suffix(1);
        cut([&](std::string_view space) { return text.starts_with(space); }, [&](std::size_t n) { text.remove_prefix(n); });
        cut([&](std::string_view space) { return text.ends_with(space); }, [&](std::size_t n) { text.remove_suffix(n); });
    }
    return text;
}

void write_chatml(const Conversation& conversation, ChatWriter& writer) {
    if (!conversation.tools.empty()) throw RowError(conversation.where, "the chatml template has no tools");
    for (const ChatMessage& message : conversation.messages) {
        if (message.role == "tool" || !message.tool_calls.empty()) throw RowError(conversation.where, "the chatml template has no tools");
        if (!message.reasoning.empty()) throw RowError(conversation.where, "the chatml template has no reasoning");
        writer.markup("<|im_start|>" + message.role + "\n");
        const bool is_answer = message.role == "assistant";
        writer.supervise(is_answer);
        is_answer ? writer.answer(message.content) : writer.foreign(message.content);
        writer.markup("<|im_end|>\n");
        writer.supervise(false);
    }
    if (conversation.is_prompt) writer.markup("<|im_start|>assistant\n");
}

void write_llama3(const Conversation& conversation, ChatWriter& writer) {
    if (!conversation.tools.empty()) throw RowError(conversation.where, "the llama3 template has no tools");
    writer.markup("<|begin_of_text|>");
    for (const ChatMessage& message : conversation.messages) {
        if (message.role == "tool" || !message.tool_calls.empty()) throw RowError(conversation.where, "the llama3 template has no tools");
        if (!message.reasoning.empty()) throw RowError(conversation.where, "the llama3 template has no reasoning");
        writer.markup("<|start_header_id|>" + message.role + "<|end_header_id|>\n\n");
        const bool is_answer = message.role == "assistant";
        writer.supervise(is_answer);
        is_answer ? writer.answer(trim(message.content)) : writer.foreign(trim(message.content));
        writer.markup("<|eot_id|>");
        writer.supervise(false);
    }
    if (conversation.is_prompt) writer.markup("<|start_header_id|>assistant<|end_header_id|>\n\n");
}

}  // namespace dflash
