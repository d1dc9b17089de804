// SPDX-License-Identifier: MIT
// Tool declarations and tool calls as the model families write them into the text. The instructions around them are part of each family's
// wire format: a target was trained on exactly these bytes.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dflash {

// One call: name, and the arguments as they stand in the row (a JSON object, or a string) in JSON text.
struct ToolCall {
    std::string name;
    std::string arguments;                                        // as qwen3 writes them
    std::vector<std::pair<std::string, std::string>> parameters;  // as qwen3.5 writes them: name -> text
    bool has_parameters = true;                                   // false: the arguments are no JSON object
};
// `tool_calls` is ChatMessage::tool_calls; empty gives no calls.
std::vector<ToolCall> parse_tool_calls(const std::string& tool_calls);

// What the system turn says about `tools` (ChatRow::tools): the family's own text around the row's declarations.
struct ToolInstructions {
    std::string before;
    std::string declarations;
    std::string after;
};
ToolInstructions qwen3_tool_instructions(const std::string& tools);
ToolInstructions qwen35_tool_instructions(const std::string& tools);

}  // namespace dflash
