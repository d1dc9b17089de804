// SPDX-License-Identifier: MIT
#include "data/tool_text.h"

#include "io/json.h"

namespace dflash {

namespace {

using Value = nlohmann::ordered_json;

// JSON with the separators of Python's json.dumps, which the templates' `tojson` uses.
std::string spaced_json(const Value& value) {
    std::string text;
    if (value.is_object()) {
        for (const auto& [key, member] : value.items()) {
            text += (text.empty() ? "" : ", ") + Value(key).dump() + ": " + spaced_json(member);
        }
        return "{" + text + "}";
    }
    if (value.is_array()) {
        for (const Value& element : value) text += (text.empty() ? "" : ", ") + spaced_json(element);
        return "[" + text + "]";
    }
    return value.dump();
}

// A parameter's text: Python's str() of the value, JSON for lists and objects.
std::string parameter_text(const Value& value) {
    if (value.is_string()) return value.get<std::string>();
    if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
    if (value.is_null()) return "None";
    return spaced_json(value);
}

std::string tool_list(const std::string& tools) {
    std::string text;
    for (const Value& tool : Value::parse(tools)) text += "\n" + spaced_json(tool);
    return text;
}

}  // namespace

std::vector<ToolCall> parse_tool_calls(const std::string& tool_calls) {
    std::vector<ToolCall> calls;
    if (tool_calls.empty()) return calls;
    for (const Value& entry : Value::parse(tool_calls)) {
        const Value& function = entry.contains("function") ? entry.at("function") : entry;
        Value arguments = function.value("arguments", Value::object());
        if (arguments.is_null()) arguments = Value::object();
        ToolCall call{function.at("name").get<std::string>(), "", {}, true};
        call.arguments = arguments.is_string() ? arguments.get<std::string>() : spaced_json(arguments);
        if (arguments.is_string()) arguments = Value::parse(call.arguments, nullptr, false);
        call.has_parameters = arguments.is_object();
        if (call.has_parameters) {
            for (const auto& [name, value] : arguments.items()) call.parameters.emplace_back(name, parameter_text(value));
        }
        calls.push_back(std::move(call));
    }
    return calls;
}

ToolInstructions qwen3_tool_instructions(const std::string& tools) {
    return {
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>",
        tool_list(tools),
        "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n"
        "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>"};
}

ToolInstructions qwen35_tool_instructions(const std::string& tools) {
    return {"# Tools\n\nYou have access to the following functions:\n\n<tools>", tool_list(tools),
            "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
            "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
            "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n</parameter>\n"
            "</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
            "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
            "<tool_call></tool_call> XML tags\n"
            "- Required parameters MUST be specified\n"
            "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after\n"
            "- If there is no function call available, answer the question like normal with your current knowledge and do not tell the "
            "user about function calls\n</IMPORTANT>"};
}

}  // namespace dflash
