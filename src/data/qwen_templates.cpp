// SPDX-License-Identifier: MIT
// The thinking families. Both keep reasoning only behind the last user query; earlier turns stand without it, as a server shows them to
// the target. They differ in when an empty think block is written, in trimming, and in how tools are spelt.
#include <algorithm>
#include <optional>

#include "data/conversation.h"
#include "data/row_error.h"
#include "data/tool_text.h"

namespace dflash {

namespace {

constexpr std::string_view kThinkEnd = "</think>";

struct Answer {
    std::string_view reasoning;
    std::string_view content;
};

// Reasoning from its own field, else what stands before </think> in the content.
Answer split_answer(const ChatMessage& message, std::string_view content) {
    if (!message.reasoning.empty()) return {message.reasoning, content};
    const std::size_t first = content.find(kThinkEnd);
    if (first == std::string_view::npos) return {"", content};
    std::string_view reasoning = strip_right(content.substr(0, first), "\n");
    const std::size_t opener = reasoning.rfind("<think>");
    if (opener != std::string_view::npos) reasoning.remove_prefix(opener + std::string_view("<think>").size());
    return {strip_left(reasoning, "\n"), strip_left(content.substr(content.rfind(kThinkEnd) + kThinkEnd.size()), "\n")};
}

// Index of the last user message that is not a wrapped tool response.
std::optional<std::size_t> last_query(const std::vector<ChatMessage>& messages, bool trims) {
    for (std::size_t i = messages.size(); i-- > 0;) {
        const std::string_view content = trims ? trim(messages[i].content) : messages[i].content;
        const bool is_tool_response = content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
        if (messages[i].role == "user" && !is_tool_response) return i;
    }
    return std::nullopt;
}

void write_turn(std::string_view role, std::string_view content, ChatWriter& writer) {
    writer.markup("<|im_start|>" + std::string(role) + "\n");
    writer.foreign(content);
    writer.markup("<|im_end|>\n");
}

// Consecutive tool results share one user turn.
void write_tool_result(const std::vector<ChatMessage>& messages, std::size_t i, std::string_view content, ChatWriter& writer) {
    if (i == 0 || messages[i - 1].role != "tool") writer.markup("<|im_start|>user");
    writer.markup("\n<tool_response>\n");
    writer.foreign(content);
    writer.markup("\n</tool_response>");
    if (i + 1 == messages.size() || messages[i + 1].role != "tool") writer.markup("<|im_end|>\n");
}

void write_instructions(const ToolInstructions& instructions, ChatWriter& writer) {
    writer.markup(instructions.before);
    writer.foreign(instructions.declarations);
    writer.markup(instructions.after);
}

void write_qwen3_answer(const Conversation& conversation, std::size_t i, std::size_t query, ChatWriter& writer) {
    const ChatMessage& message = conversation.messages[i];
    Answer answer = split_answer(message, message.content);
    bool needs_newline = !answer.content.empty();  // before a tool call
    writer.markup("<|im_start|>assistant\n");
    writer.supervise(true);
    if (i > query && (i + 1 == conversation.messages.size() || !answer.reasoning.empty())) {
        // Without thinking the empty block is the prompt's, not the target's.
        writer.supervise(conversation.thinking || !answer.reasoning.empty());
        writer.markup("<think>\n");
        writer.answer(strip(answer.reasoning, "\n"));
        writer.markup("\n</think>\n\n");
        writer.supervise(true);
        answer.content = strip_left(answer.content, "\n");
    }
    writer.answer(answer.content);
    for (const ToolCall& call : parse_tool_calls(message.tool_calls)) {
        writer.markup(needs_newline ? "\n<tool_call>\n" : "<tool_call>\n");
        writer.answer("{\"name\": \"" + call.name + "\", \"arguments\": " + call.arguments + "}");
        writer.markup("\n</tool_call>");
        needs_newline = true;
    }
    writer.markup("<|im_end|>\n");
    writer.supervise(false);
}

void write_qwen35_answer(const Conversation& conversation, std::size_t i, std::size_t query, ChatWriter& writer) {
    const ChatMessage& message = conversation.messages[i];
    Answer answer = split_answer(message, trim(message.content));
    answer.reasoning = trim(answer.reasoning);
    writer.markup("<|im_start|>assistant\n");
    // An earlier turn stands without the think block that the target wrote it behind: context, not something to learn.
    const bool has_block = i > query;
    if (has_block) {
        writer.markup("<think>\n");
        writer.supervise(conversation.thinking || !answer.reasoning.empty());
        writer.answer(answer.reasoning);
        writer.markup("\n</think>\n\n");
    }
    writer.supervise(has_block);
    writer.answer(answer.content);
    std::string_view gap = trim(answer.content).empty() ? "" : "\n\n";
    for (const ToolCall& call : parse_tool_calls(message.tool_calls)) {
        if (!call.has_parameters) throw RowError(conversation.where, "a tool call's arguments are not a JSON object");
        writer.markup(std::string(gap) + "<tool_call>\n");
        writer.answer("<function=" + call.name + ">\n");
        for (const auto& [name, text] : call.parameters) {
            writer.answer("<parameter=" + name + ">\n" + text + "\n</parameter>\n");
        }
        writer.markup("</function>\n</tool_call>");
        gap = "\n";
    }
    writer.markup("<|im_end|>\n");
    writer.supervise(false);
}

}  // namespace

void write_qwen3(const Conversation& conversation, ChatWriter& writer) {
    const auto& messages = conversation.messages;
    const bool has_system = messages.front().role == "system";
    if (!conversation.tools.empty()) {
        writer.markup("<|im_start|>system\n");
        if (has_system) writer.foreign(messages.front().content);
        if (has_system) writer.markup("\n\n");
        write_instructions(qwen3_tool_instructions(conversation.tools), writer);
        writer.markup("<|im_end|>\n");
    } else if (has_system) {
        write_turn("system", messages.front().content, writer);
    }
    const std::size_t query = last_query(messages, false).value_or(messages.size() - 1);

    for (std::size_t i = 0; i < messages.size(); ++i) {
        if (messages[i].role == "assistant") {
            write_qwen3_answer(conversation, i, query, writer);
        } else if (messages[i].role == "tool") {
            write_tool_result(messages, i, messages[i].content, writer);
        } else if (messages[i].role == "user" || i > 0) {
            write_turn(messages[i].role, messages[i].content, writer);
        }
    }
    if (conversation.is_prompt) writer.markup("<|im_start|>assistant\n");
    if (conversation.is_prompt && !conversation.thinking) writer.markup("<think>\n\n</think>\n\n");
}

void write_qwen35(const Conversation& conversation, ChatWriter& writer) {
    const auto& messages = conversation.messages;
    const bool has_system = messages.front().role == "system";
    const std::string_view system = trim(messages.front().content);
    if (!conversation.tools.empty()) {
        writer.markup("<|im_start|>system\n");
        write_instructions(qwen35_tool_instructions(conversation.tools), writer);
        if (has_system && !system.empty()) writer.markup("\n\n");
        if (has_system) writer.foreign(system);
        writer.markup("<|im_end|>\n");
    } else if (has_system) {
        write_turn("system", system, writer);
    }
    const auto query = last_query(messages, true);
    if (!query) throw RowError(conversation.where, "no user query");

    for (std::size_t i = 0; i < messages.size(); ++i) {
        const std::string_view content = trim(messages[i].content);
        if (messages[i].role == "assistant") {
            write_qwen35_answer(conversation, i, *query, writer);
        } else if (messages[i].role == "tool") {
            write_tool_result(messages, i, content, writer);
        } else if (messages[i].role == "user") {
            write_turn("user", content, writer);
        } else if (i > 0) {
            throw RowError(conversation.where, "a system message that is not the first");
        }
    }
    if (conversation.is_prompt) writer.markup("<|im_start|>assistant\n<think>\n");
    if (conversation.is_prompt && !conversation.thinking) writer.markup("\n</think>\n\n");
}

}  // namespace dflash
