// SPDX-License-Identifier: MIT
// Builds token ids and the loss mask of one conversation from pieces in order. Plain text between two added tokens is encoded in one go, as
// the whole text would be, so a newline of the template and what follows it become the same tokens as in the target's own prompt. A token
// that straddles a change of supervision counts as what it starts in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat_template.h"
#include "io/tokenizer.h"

namespace dflash {

class ChatWriter {
public:
    explicit ChatWriter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

    // What follows is trained on, or not (at first not).
    void supervise(bool on) { is_supervised_ = on; }
    // The template's own text: added tokens in it become their ids.
    void markup(std::string_view text);
    // What a user, the system or a tool said: plain text throughout.
    void foreign(std::string_view text);
    // What the target said: added tokens that are not special (<think>, <tool_call>) become their ids, special ones stay text.
    void answer(std::string_view text);

    RenderedChat finish();

private:
    // Text of one run between added tokens; supervision changes only behind a newline of the template, so parts normalize apart.
    struct Part {
        std::string text;
        bool is_supervised;
    };
    void plain(std::string_view text);
    void flush_run();
    void push(std::int32_t id, bool is_supervised);

    const Tokenizer& tokenizer_;
    bool is_supervised_ = false;
    std::vector<Part> run_;
    RenderedChat chat_;
};

}  // namespace dflash
