// SPDX-License-Identifier: MIT
#include "data/chat_template.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "data/conversation.h"
#include "data/row_error.h"
#include "io/atomic_file.h"
#include "io/json.h"

namespace dflash {

namespace {

struct TemplateEntry {
    TemplateKind kind;
    const char* name;
    const char* mark;  // what `auto` looks for in the template's text, in this order
    void (*write)(const Conversation&, ChatWriter&);
    std::array<const char*, 4> needs;  // control tokens that the tokenizer must have
};
constexpr std::array<TemplateEntry, 4> kTemplates = {{
    {TemplateKind::kLlama3,
     "llama3",
     "<|start_header_id|>",
     write_llama3,
     {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
    {TemplateKind::kQwen35, "qwen3.5", "<function=", write_qwen35, {"<|im_start|>", "<|im_end|>"}},
    {TemplateKind::kQwen3, "qwen3", "<think>", write_qwen3, {"<|im_start|>", "<|im_end|>"}},
    {TemplateKind::kChatml, "chatml", "<|im_start|>", write_chatml, {"<|im_start|>", "<|im_end|>"}},
}};

const TemplateEntry& entry_of(TemplateKind kind) {
    return *std::find_if(kTemplates.begin(), kTemplates.end(), [kind](const TemplateEntry& entry) { return entry.kind == kind; });
}

// The chat_template of a JSON file: text, or a list of named ones of which "default" counts.
std::optional<std::string> template_in_json(const std::string& path) {
    if (!std::filesystem::exists(path)) return std::nullopt;
    const Json file = read_json_file(path);
    if (!file.is_object() || !file.contains("chat_template")) return std::nullopt;
    const Json& text = file.at("chat_template");
    if (text.is_string()) return text.get<std::string>();
    if (!text.is_array()) return std::nullopt;
    for (const Json& named : text) {
        if (!named.is_object() || named.value("name", Json()) != Json("default")) continue;
        return json_get<std::string>(named, "template", path);
    }
    return std::nullopt;
}

std::optional<std::string> template_text(const std::string& folder) {
    const std::string jinja = folder + "/chat_template.jinja";
    if (std::filesystem::exists(jinja)) return read_file(jinja);
    const auto text = template_in_json(folder + "/tokenizer_config.json");
    return text ? text : template_in_json(folder + "/chat_template.json");
}

void check_control_tokens(const TemplateEntry& entry, const Tokenizer& tokenizer) {
    for (const char* token : entry.needs) {
        if (token == nullptr || !tokenizer.find_added_tokens(token).empty()) continue;
        throw_bad_input("template {} needs the token '{}', which the tokenizer does not have: give another --template", entry.name, token);
    }
}

void check_order(const std::vector<ChatMessage>& messages, const std::string& where) {
    const auto first = std::find_if(messages.begin(), messages.end(), [](const ChatMessage& message) { return message.role != "system"; });
    if (first == messages.end()) throw RowError(where, "no turn but the system's");
    if (first->role == "assistant") throw RowError(where, "starts with an assistant turn");
    if (first->role == "tool") throw RowError(where, "starts with a tool turn");
}

RenderedChat write(Conversation conversation, const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
    check_order(conversation.messages, conversation.where);
    const auto is_system = [](const ChatMessage& message) { return message.role == "system"; };
    const bool has_system = std::any_of(conversation.messages.begin(), conversation.messages.end(), is_system);
    if (!has_system && !chat_template.system.empty()) {
        conversation.messages.insert(conversation.messages.begin(), {"system", chat_template.system, "", ""});
    }
    conversation.thinking = chat_template.thinking;
    const TemplateEntry& entry = entry_of(chat_template.kind);
    check_control_tokens(entry, tokenizer);
    ChatWriter writer(tokenizer);
    entry.write(conversation, writer);
    return writer.finish();
}

// Ready tokens up to the last supervised run.
std::vector<std::int32_t> prompt_of_ready_row(const ChatRow& row, const std::string& where) {
    std::size_t end = row.loss_mask.size();
    while (end > 0 && row.loss_mask[end - 1] == 0) --end;
    while (end > 0 && row.loss_mask[end - 1] != 0) --end;
    if (end == 0) throw RowError(where, "no tokens before the answer");
    return {row.input_ids.begin(), row.input_ids.begin() + static_cast<std::ptrdiff_t>(end)};
}

}  // namespace

const char* template_name(TemplateKind kind) { return entry_of(kind).name; }

TemplateKind resolve_template(const std::string& name, const std::string& target_folder) {
    for (const TemplateEntry& entry : kTemplates) {
        if (name == entry.name) return entry.kind;
    }
    const char* names = "auto, chatml, qwen3, qwen3.5, llama3";
    if (name != "auto") throw_bad_input("--template {}: unknown; use one of {}", name, names);
    const auto text = template_text(target_folder);
    if (!text) throw_bad_input("{}: has no chat template; give --template (one of {})", target_folder, names);
    for (const TemplateEntry& entry : kTemplates) {
        if (text->find(entry.mark) != std::string::npos) return entry.kind;
    }
    throw_bad_input("{}: its chat template is of no known family; give --template (one of {}), or rows with input_ids and loss_mask",
                    target_folder, names);
}

RenderedChat render_chat(const ChatRow& row, const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
    const std::string where = "row " + row.id;
    if (!row.input_ids.empty()) return {row.input_ids, row.loss_mask, false};
    if (row.messages.empty()) throw RowError(where, "a prompt without an answer");
    const auto is_answer = [](const ChatMessage& message) { return message.role == "assistant"; };
    if (std::none_of(row.messages.begin(), row.messages.end(), is_answer)) throw RowError(where, "no assistant turn");
    return write({where, row.messages, row.tools, false, false}, chat_template, tokenizer);
}

std::vector<std::int32_t> render_prompt(const ChatRow& row, const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
    const std::string where = "row " + row.id;
    if (row.prompt_ids) {
        if (row.prompt_ids->empty()) throw RowError(where, "prompt_ids is empty");
        return *row.prompt_ids;
    }
    if (row.prompt) {
        const bool needs_start = chat_template.kind == TemplateKind::kLlama3 && !row.prompt->starts_with("<|begin_of_text|>");
        auto ids = tokenizer.encode((needs_start ? "<|begin_of_text|>" : "") + *row.prompt);
        if (ids.empty()) throw RowError(where, "prompt is empty");
        return ids;
    }
    if (!row.input_ids.empty()) return prompt_of_ready_row(row, where);
    std::vector<ChatMessage> messages = row.messages;
    if (!messages.empty() && messages.back().role == "assistant") messages.pop_back();
    return write({where, std::move(messages), row.tools, false, true}, chat_template, tokenizer).ids;
}

}  // namespace dflash
