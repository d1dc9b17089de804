// SPDX-License-Identifier: MIT
// Lines of chat files for tests, and rendering them with the tiny target's tokenizer or the published one.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "io/json.h"

namespace dflash::testing {

// {"messages": [{"role": ..., "content": ...}, ...]}
inline std::string chat_line(std::initializer_list<std::pair<std::string, std::string>> turns, const std::string& id = "") {
    Json row = {{"messages", Json::array()}};
    if (!id.empty()) row["id"] = id;
    for (const auto& [role, content] : turns) row["messages"].push_back({{"role", role}, {"content", content}});
    return row.dump();
}

// A row with ready ids `first`, `first` + 1, ...; all but the first `prompt` supervised.
inline std::string ready_line(std::int32_t first, std::int64_t length, std::int64_t prompt = 0, const std::string& id = "") {
    Json row = {{"input_ids", Json::array()}, {"loss_mask", Json::array()}};
    if (!id.empty()) row["id"] = id;
    for (std::int64_t i = 0; i < length; ++i) {
        row["input_ids"].push_back(first + i);
        row["loss_mask"].push_back(i < prompt ? 0 : 1);
    }
    return row.dump();
}

}  // namespace dflash::testing
