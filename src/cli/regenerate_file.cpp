// SPDX-License-Identifier: MIT
#include "cli/regenerate_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/check.h"
#include "base/error.h"
#include "data/row_error.h"
#include "io/atomic_file.h"
#include "io/line_file.h"

namespace dflash::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kThinkOpen = "<think>";
constexpr std::string_view kThinkClose = "</think>";

std::string_view trimmed(std::string_view text) {
    const auto first = text.find_first_not_of("\n ");
    if (first == std::string_view::npos) return "";
    return text.substr(first, text.find_last_not_of("\n ") - first + 1);
}

std::string id_of_line(const std::string& line) {
    // The partial file's lines were written by this program; "where" only shows when the file was changed by hand.
    return parse_chat_row(line, "the partial output").id;
}

}  // namespace

ChatRowEditor::ChatRowEditor(std::string_view line, const std::string& where) : row_(parse_chat_row(line, where)) {
    json_ = OrderedJson::parse(line);
    for (const char* key : {"messages", "conversations"}) {
        if (list_key_.empty() && json_.contains(key) && json_[key].is_array()) list_key_ = key;
    }
    if (list_key_.empty() || row_.messages.empty()) throw RowError(where, "no conversation");
    const std::size_t listed = json_[list_key_].size();
    first_in_list_ = row_.messages.size() - listed;
    DFLASH_CHECK(first_in_list_ <= 1, "{}: {} messages read of {}", where, row_.messages.size(), listed);
    if (!row_.tools.empty()) throw RowError(where, "tools, whose answers cannot be made anew");
    for (std::size_t i = 0; i < row_.messages.size(); ++i) {
        const ChatMessage& message = row_.messages[i];
        if (message.role == "tool" || !message.tool_calls.empty()) {
            throw RowError(where, "tools, whose answers cannot be made anew");
        }
        if (message.role == "assistant") turns_.push_back(i);
    }
    if (row_.messages.back().role == "user") append_turn();
    if (turns_.empty()) throw RowError(where, "no question to answer");
    if (turns_.front() == 0 || row_.messages[turns_.front() - 1].role != "user") throw RowError(where, "starts with an assistant turn");
    // Rows without an id of their own keep their line's number, so that resuming knows them again.
    if (!json_.contains("id") && !json_.contains("conversation_id") && !json_.contains("task_id")) json_["id"] = row_.id;
}

void ChatRowEditor::append_turn() {
    OrderedJson& list = json_[list_key_];
    OrderedJson message = OrderedJson::object();
    if (list.back().contains("from")) {
        message["from"] = "gpt";
        message["value"] = "";
    } else {
        message["role"] = "assistant";
        message["content"] = "";
    }
    list.push_back(message);
    turns_.push_back(row_.messages.size());
    row_.messages.push_back({.role = "assistant", .content = "", .reasoning = "", .tool_calls = ""});
}

ChatRow ChatRowEditor::conversation(std::size_t turn) const {
    ChatRow part = row_;
    part.messages.resize(turn + 1);
    part.prompt.reset();
    part.prompt_ids.reset();
    return part;
}

void ChatRowEditor::set_answer(std::size_t turn, const std::string& text, bool has_reasoning) {
    std::string_view content = text;
    std::string_view reasoning;
    if (const auto close = content.find(kThinkClose); has_reasoning && close != std::string_view::npos) {
        reasoning = trimmed(content.substr(0, close));
        if (reasoning.substr(0, kThinkOpen.size()) == kThinkOpen) reasoning = trimmed(reasoning.substr(kThinkOpen.size()));
        content = trimmed(content.substr(close + kThinkClose.size()));
    }
    row_.messages[turn].content = content;
    row_.messages[turn].reasoning = reasoning;
    OrderedJson& message = json_[list_key_][turn - first_in_list_];
    message[message.contains("value") ? "value" : "content"] = content;
    for (const char* key : {"reasoning", "reasoning_content", "thinking"}) message.erase(key);
    if (!reasoning.empty()) message["reasoning_content"] = reasoning;
}

ResumableOutput::ResumableOutput(const std::string& path, const std::string& settings) : path_(path) {
    if (std::filesystem::exists(path)) throw_bad_input("{} exists: remove it, or give another --out", path);
    partial_ = path + "." + sha256_hex(settings).substr(0, 12) + ".partial";
    std::uintmax_t complete_bytes = 0;
    if (std::ifstream earlier(partial_); earlier) {
        std::string line;
        while (std::getline(earlier, line) && !earlier.eof()) {
            ++done_[id_of_line(line)];
            ++rows_;
            complete_bytes += line.size() + 1;
        }
    }
    if (std::filesystem::exists(partial_)) std::filesystem::resize_file(partial_, complete_bytes);
    file_ = std::fopen(partial_.c_str(), "ab");
    if (file_ == nullptr) throw_bad_input("{} cannot be written: {}", partial_, std::strerror(errno));
}

ResumableOutput::~ResumableOutput() {
    if (file_ == nullptr) return;
    std::fclose(file_);
    std::error_code ignored;
    if (rows_ == 0) std::filesystem::remove(partial_, ignored);
}

bool ResumableOutput::take_done(const std::string& id) {
    const auto found = done_.find(id);
    if (found == done_.end() || found->second == 0) return false;
    --found->second;
    return true;
}

void ResumableOutput::append(const std::string& line) {
    if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fputc('\n', file_) == EOF || std::fflush(file_) != 0) {
        throw_failed("{} cannot be written: {}; run again to continue from what is complete", partial_, std::strerror(errno));
    }
    ++rows_;
}

void ResumableOutput::finish() {
    const bool closed = std::fclose(file_) == 0;
    file_ = nullptr;
    if (!closed) throw_failed("{} cannot be written: {}", partial_, std::strerror(errno));
    sync_path(partial_);
    std::filesystem::rename(partial_, path_);
}

void for_each_line(const std::string& path, const std::function<void(const std::string&, const std::string&)>& visit) {
    std::ifstream file = open_line_file(path, "chats");
    std::string line;
    for (std::int64_t number = 1; std::getline(file, line); ++number) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        visit(line, path + " line " + std::to_string(number));
    }
}

}  // namespace dflash::cli
