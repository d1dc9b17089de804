// SPDX-License-Identifier: MIT
// The files of `dflash regenerate`: rows of a chat file with each assistant turn replaced by an answer, in the row's own spelling; and an
// output that grows row by row, survives being killed, and appears under its name only when complete.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat.h"

namespace dflash::cli {

// One row being answered. Construction throws Error(kBadInput) with the reason when the row is no conversation that can be answered.
class ChatRowEditor {
public:
    ChatRowEditor(std::string_view line, const std::string& where);

    const std::string& id() const { return row_.id; }
    // Messages to be written, in order: the assistant's turns; one more where the conversation ends with the user.
    const std::vector<std::size_t>& turns() const { return turns_; }
    // The conversation up to and including the turn, whose own text is left out when a prompt is rendered.
    ChatRow conversation(std::size_t turn) const;
    // With `has_reasoning`, text before "</think>" becomes the reasoning and text after it the content.
    void set_answer(std::size_t turn, const std::string& text, bool has_reasoning);
    std::string line() const { return json_.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }

private:
    void append_turn();

    ChatRow row_;
    nlohmann::ordered_json json_;
    std::string list_key_;           // "messages" or "conversations"
    std::size_t first_in_list_ = 0;  // message that the list starts with: 1 where the row has a system text of its own
    std::vector<std::size_t> turns_;
};

class ResumableOutput {
public:
    // Opens PATH.KEY.partial, where KEY stands for the settings: a run with others starts afresh. A line cut short is dropped.
    // Error(kBadInput) when PATH exists already.
    ResumableOutput(const std::string& path, const std::string& settings);
    ~ResumableOutput();  // unfinished: what is written stays for the next run; an empty file goes
    ResumableOutput(const ResumableOutput&) = delete;
    ResumableOutput& operator=(const ResumableOutput&) = delete;

    std::int64_t rows() const { return rows_; }
    // Whether an earlier run wrote the row with this id; each written row answers once.
    bool take_done(const std::string& id);
    void append(const std::string& line);
    void finish();  // sync, rename

private:
    std::string path_, partial_;
    std::FILE* file_ = nullptr;
    std::map<std::string, std::int64_t> done_;
    std::int64_t rows_ = 0;
};

// Calls visit(line, where) for every line that is not blank.
void for_each_line(const std::string& path, const std::function<void(const std::string& line, const std::string& where)>& visit);

}  // namespace dflash::cli
