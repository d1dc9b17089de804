// SPDX-License-Identifier: MIT
// The reader of chat rows on arbitrary lines, and every template on the rows it takes: refused with Error(kBadInput) in one line, or ids
// with a mask of the same length.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/chat.h"
#include "data/chat_template.h"
#include "support/small_tokenizer.h"

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

const dflash::Tokenizer& tokenizer() {
    static const dflash::Tokenizer made = [] {
        dflash::testing::SmallTokenizer small;
        std::int32_t id = 300;
        for (const char* token :
             {"<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}) {
            small.add_token(token, id++);
        }
        for (const char* token : {"<think>", "</think>", "<tool_call>", "</tool_call>"}) small.add_token(token, id++, false);
        return small.build();
    }();
    return made;
}

template <typename Call>
void refused_or(const Call& call) {
    try {
        call();
    } catch (const dflash::Error& error) {
        require(error.kind() == dflash::ErrorKind::kBadInput);
        require(std::string_view(error.what()).find('\n') == std::string_view::npos);
    }
}

void render(const dflash::ChatRow& row, const dflash::ChatTemplate& chat_template) {
    refused_or([&] {
        const dflash::RenderedChat chat = dflash::render_chat(row, chat_template, tokenizer());
        require(chat.ids.size() == chat.loss_mask.size());
    });
    refused_or([&] { require(!dflash::render_prompt(row, chat_template, tokenizer()).empty()); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using dflash::TemplateKind;
    refused_or([&] {
        const dflash::ChatRow row = dflash::parse_chat_row({reinterpret_cast<const char*>(data), size}, "fuzz line 1");
        require(row.input_ids.size() == row.loss_mask.size());
        for (const TemplateKind kind : {TemplateKind::kChatml, TemplateKind::kQwen3, TemplateKind::kQwen35, TemplateKind::kLlama3}) {
            render(row, {kind, size % 2 == 0, size % 3 == 0 ? "S" : ""});
        }
    });
    return 0;
}
