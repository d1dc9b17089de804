// SPDX-License-Identifier: MIT
#include "data/chat.h"

#include <array>
#include <limits>
#include <utility>

#include "data/row_error.h"
#include "io/json.h"
#include "io/text.h"

namespace dflash {

namespace {

// Keeps the order of keys, which tool declarations and tool calls are rendered in.
using Value = nlohmann::ordered_json;

constexpr std::array<std::pair<const char*, const char*>, 9> kRoles = {{{"system", "system"},
                                                                        {"user", "user"},
                                                                        {"human", "user"},
                                                                        {"assistant", "assistant"},
                                                                        {"gpt", "assistant"},
                                                                        {"tool", "tool"},
                                                                        {"observation", "tool"},
                                                                        {"function", "tool"},
                                                                        {"function_response", "tool"}}};

class RowReader {
public:
    RowReader(const Value& row, const std::string& where) : row_(row), where_(where) {}

    ChatRow read() const {
        if (!row_.is_object()) refuse("not a JSON object");
        ChatRow chat;
        chat.id = read_id();
        if (find(row_, "input_ids") != nullptr && (find(row_, "loss_mask") != nullptr || message_list() == nullptr)) {
            read_ready_ids(chat);
        } else if (message_list() != nullptr) {
            read_messages(chat);
        } else {
            read_prompt(chat);
        }
        return chat;
    }

private:
    [[noreturn]] void refuse(const std::string& reason, const std::string& detail = "") const { throw RowError(where_, reason, detail); }

    // Null members count as absent.
    static const Value* find(const Value& object, const char* key) {
        const auto member = object.find(key);
        return member == object.end() || member->is_null() ? nullptr : &*member;
    }

    std::string read_id() const {
        for (const char* key : {"id", "conversation_id", "task_id"}) {
            const Value* id = find(row_, key);
            if (id == nullptr) continue;
            if (id->is_string()) return id->get<std::string>();
            if (id->is_number_integer()) return id->dump();
        }
        // "FILE line N": the line number stands in.
        const std::size_t space = where_.rfind(' ');
        return space == std::string::npos ? where_ : where_.substr(space + 1);
    }

    const Value* message_list() const {
        const Value* messages = find(row_, "messages");
        const Value* conversations = find(row_, "conversations");
        if (messages != nullptr && conversations != nullptr) refuse("both messages and conversations");
        return messages != nullptr ? messages : conversations;
    }

    std::vector<std::int32_t> token_ids(const Value& list, const char* key) const {
        if (!list.is_array()) refuse("token ids are not a list", key);
        std::vector<std::int32_t> ids;
        ids.reserve(list.size());
        for (const Value& id : list) {
            constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
            if (!id.is_number_unsigned() || id.get<std::uint64_t>() > kMost) refuse("a token id is not a whole number from 0 on", key);
            ids.push_back(id.get<std::int32_t>());
        }
        return ids;
    }

    void read_ready_ids(ChatRow& chat) const {
        chat.input_ids = token_ids(row_.at("input_ids"), "input_ids");
        const Value* mask = find(row_, "loss_mask");
        if (mask == nullptr) refuse("input_ids without loss_mask");
        if (!mask->is_array() || mask->size() != chat.input_ids.size()) refuse("input_ids and loss_mask differ in length");
        if (chat.input_ids.empty()) refuse("no tokens");
        for (const Value& flag : *mask) {
            const bool on = flag == Value(1) || flag == Value(true);
            if (!on && flag != Value(0) && flag != Value(false)) refuse("loss_mask holds something else than 0 and 1");
            chat.loss_mask.push_back(on ? 1 : 0);
        }
    }

    void read_prompt(ChatRow& chat) const {
        if (const Value* ids = find(row_, "prompt_ids")) chat.prompt_ids = token_ids(*ids, "prompt_ids");
        if (const Value* prompt = find(row_, "prompt")) {
            if (!prompt->is_string()) refuse("prompt is not a string");
            chat.prompt = prompt->get<std::string>();
        }
        if (!chat.prompt && !chat.prompt_ids) refuse("neither messages nor a prompt nor input_ids");
    }

    void read_messages(ChatRow& chat) const {
        const Value& list = *message_list();
        if (!list.is_array()) refuse("messages is not a list");
        if (const Value* ids = find(row_, "prompt_ids")) chat.prompt_ids = token_ids(*ids, "prompt_ids");
        if (const Value* system = find(row_, "system")) {
            if (!system->is_string()) refuse("system is not a string");
            if (!system->get_ref<const std::string&>().empty()) chat.messages.push_back({"system", system->get<std::string>(), "", ""});
        }
        const bool has_system = !chat.messages.empty();
        for (const Value& message : list) {
            chat.messages.push_back(read_message(message));
            if (has_system && chat.messages.back().role == "system") refuse("two system texts", "the row's own and a message's");
        }
        if (chat.messages.empty()) refuse("no messages");
        if (const Value* tools = find(row_, "tools")) chat.tools = read_tools(*tools);
    }

    ChatMessage read_message(const Value& message) const {
        if (!message.is_object()) refuse("a message is not an object");
        const bool is_openai = find(message, "role") != nullptr;
        if (is_openai && find(message, "from") != nullptr) refuse("a message has both role and from");
        if (!is_openai && find(message, "from") == nullptr) refuse("a message has no role");
        if (find(message, is_openai ? "value" : "content") != nullptr) refuse("a message mixes role/content and from/value");
        if (find(message, "function_call") != nullptr) refuse("function_call is not supported; tool_calls is");

        ChatMessage out;
        out.role = read_role(message.at(is_openai ? "role" : "from"));
        out.tool_calls = read_tool_calls(message);
        out.reasoning = read_reasoning(message);
        if (out.role != "assistant" && !(out.tool_calls.empty() && out.reasoning.empty())) {
            refuse("tool calls or reasoning outside an assistant turn");
        }
        const Value* content = find(message, is_openai ? "content" : "value");
        if (content != nullptr) {
            out.content = read_content(*content);
        } else if (out.tool_calls.empty()) {
            refuse("a message has no content");
        }
        return out;
    }

    std::string read_role(const Value& role) const {
        if (!role.is_string()) refuse("a role is not a string");
        const auto& name = role.get_ref<const std::string&>();
        for (const auto& [spelt, meant] : kRoles) {
            if (name == spelt) return meant;
        }
        refuse("unknown role", printable(name, 40));
    }

    std::string read_content(const Value& content) const {
        if (content.is_string()) return content.get<std::string>();
        if (!content.is_array()) refuse("content is neither a string nor a list of parts");
        std::string text;
        for (const Value& part : content) {
            if (part.is_string()) {
                text += part.get_ref<const std::string&>();
                continue;
            }
            if (!part.is_object()) refuse("a content part is neither text nor an object");
            const Value* type = find(part, "type");
            const Value* value = find(part, "text");
            if ((type != nullptr && *type != Value("text")) || value == nullptr || !value->is_string()) {
                refuse("a content part is not text", type != nullptr && type->is_string() ? printable(type->get<std::string>(), 40) : "");
            }
            text += value->get_ref<const std::string&>();
        }
        return text;
    }

    std::string read_reasoning(const Value& message) const {
        const Value* long_name = find(message, "reasoning_content");
        const Value* reasoning = long_name != nullptr ? long_name : find(message, "reasoning");
        if (reasoning == nullptr) return "";
        if (!reasoning->is_string()) refuse("reasoning is not a string");
        return reasoning->get<std::string>();
    }

    std::string read_tool_calls(const Value& message) const {
        const Value* calls = find(message, "tool_calls");
        if (calls == nullptr || calls->empty()) return "";
        if (!calls->is_array()) refuse("tool_calls is not a list");
        for (const Value& call : *calls) {
            const Value* function = call.is_object() && call.contains("function") ? &call.at("function") : &call;
            const Value* name = function->is_object() ? find(*function, "name") : nullptr;
            if (name == nullptr || !name->is_string()) refuse("a tool call has no name");
            const Value* arguments = find(*function, "arguments");
            if (arguments != nullptr && !arguments->is_string() && !arguments->is_object()) {
                refuse("a tool call's arguments are neither an object nor a string");
            }
        }
        return calls->dump();
    }

    // A list, or a string that holds one as JSON.
    std::string read_tools(const Value& tools) const {
        if (tools.empty() || tools == Value("")) return "";
        Value list = tools;
        if (tools.is_string()) {
            list = Value::parse(tools.get_ref<const std::string&>(), nullptr, false);
            if (list.is_discarded()) refuse("tools is a string that holds no JSON");
        }
        if (!list.is_array()) refuse("tools is not a list");
        for (const Value& tool : list) {
            if (!tool.is_object()) refuse("a tool is not an object");
        }
        return list.empty() ? "" : list.dump();
    }

    const Value& row_;
    const std::string& where_;
};

}  // namespace

ChatRow parse_chat_row(std::string_view line, const std::string& where) {
    try {
        (void)parse_json(line, where);  // the strict checks
    } catch (const Error& error) {
        std::string detail = error.what();
        for (const std::string& known : {where + ": ", std::string("not valid JSON: ")}) {
            if (detail.starts_with(known)) detail.erase(0, known.size());
        }
        throw RowError(where, "not valid JSON", detail);
    }
    const Value row = Value::parse(line.begin(), line.end());
    return RowReader(row, where).read();
}

}  // namespace dflash
