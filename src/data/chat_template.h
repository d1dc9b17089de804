// SPDX-License-Identifier: MIT
// Renders a chat row to token ids and the assistant-only loss mask, as the model families' own templates do. Ids and masks are made
// segment by segment, so text inside a message can neither forge a control token nor open the mask.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/chat.h"
#include "io/tokenizer.h"

namespace dflash {

enum class TemplateKind { kChatml, kQwen3, kQwen35, kLlama3 };

struct ChatTemplate {
    TemplateKind kind = TemplateKind::kChatml;
    bool thinking = false;  // --thinking on|off
    std::string system;     // --system TEXT: used when a row has no system message; empty = none
    bool operator==(const ChatTemplate&) const = default;
};
const char* template_name(TemplateKind kind);
// --template NAME; "auto" looks into `tokenizer_config.json` / `chat_template.jinja` of the target folder, by the rules of docs/formats.md;
// refuses (Error kBadInput) what it does not recognise.
TemplateKind resolve_template(const std::string& name, const std::string& target_folder);

struct RenderedChat {
    std::vector<std::int32_t> ids;
    std::vector<std::uint8_t> loss_mask;  // same length
    bool has_control_text = false;        // a message spells a control token; it was encoded as plain text
};
// Whole conversation, for training. Throws Error(kBadInput) when the template cannot express the row.
RenderedChat render_chat(const ChatRow& row, const ChatTemplate& chat_template, const Tokenizer& tokenizer);
// Prompt for generation: `prompt_ids`, or `prompt` encoded as raw text (added tokens parsed), or ready `input_ids` up to the last
// supervised run, or the messages without a last assistant turn, followed by the generation prompt.
std::vector<std::int32_t> render_prompt(const ChatRow& row, const ChatTemplate& chat_template, const Tokenizer& tokenizer);

}  // namespace dflash
