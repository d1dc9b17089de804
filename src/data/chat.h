// SPDX-License-Identifier: MIT
// One row of a chat file: `messages` or `conversations`, in the OpenAI (role/content) or ShareGPT (from/value) spelling, with
// system, tool and reasoning fields; or ready `input_ids` + `loss_mask`; or, for generation, `prompt` / `prompt_ids`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash {

struct ChatMessage {
    std::string role;  // "system", "user", "assistant", "tool"
    std::string content;
    std::string reasoning;   // reasoning_content / reasoning
    std::string tool_calls;  // JSON array as in the row, empty when none
};

struct ChatRow {
    std::string id;  // the row's "id" / "conversation_id" / "task_id", else its line number
    std::vector<ChatMessage> messages;
    std::string tools;                    // JSON array as in the row, empty when none
    std::vector<std::int32_t> input_ids;  // ready rows
    std::vector<std::uint8_t> loss_mask;  // ready rows
    std::optional<std::string> prompt;    // raw text, for generation
    std::optional<std::vector<std::int32_t>> prompt_ids;
};

// Parses one JSONL line. Throws Error(kBadInput) naming `where` ("FILE line N") and the reason; prepare counts reasons instead.
ChatRow parse_chat_row(std::string_view line, const std::string& where);

}  // namespace dflash
