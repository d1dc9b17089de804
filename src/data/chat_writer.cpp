// SPDX-License-Identifier: MIT
#include "data/chat_writer.h"

#include <utility>

#include "base/check.h"

namespace dflash {

void ChatWriter::markup(std::string_view text) {
    std::size_t at = 0;
    for (const AddedTokenSpan& span : tokenizer_.find_added_tokens(text)) {
        plain(text.substr(at, span.begin - at));
        flush_run();
        push(span.token->id, is_supervised_);
        at = span.end;
    }
    plain(text.substr(at));
}

void ChatWriter::foreign(std::string_view text) {
    if (!tokenizer_.find_added_tokens(text).empty()) chat_.has_control_text = true;
    plain(text);
}

void ChatWriter::answer(std::string_view text) {
    std::size_t at = 0;
    for (const AddedTokenSpan& span : tokenizer_.find_added_tokens(text)) {
        const std::string_view spelt = text.substr(at, span.end - at);
        at = span.end;
        if (span.token->special) {
            foreign(spelt);
        } else {
            plain(spelt.substr(0, spelt.size() - (span.end - span.begin)));
            markup(text.substr(span.begin, span.end - span.begin));
        }
    }
    plain(text.substr(at));
}

void ChatWriter::plain(std::string_view text) {
    if (text.empty()) return;
    if (run_.empty() || run_.back().is_supervised != is_supervised_) run_.push_back({"", is_supervised_});
    run_.back().text += text;
}

void ChatWriter::flush_run() {
    std::string run;
    std::vector<std::size_t> ends;  // of each part in `run`
    for (const Part& part : run_) {
        run += tokenizer_.normalized(part.text);
        ends.push_back(run.size());
    }
    std::size_t at = 0;
    std::size_t part = 0;
    for (const std::int32_t id : tokenizer_.encode(run, false)) {
        while (at >= ends[part]) ++part;
        push(id, run_[part].is_supervised);
        at += tokenizer_.token_bytes(id).size();
        DFLASH_CHECK(at <= run.size(), "tokens and text differ in length");
    }
    run_.clear();
}

void ChatWriter::push(std::int32_t id, bool is_supervised) {
    chat_.ids.push_back(id);
    chat_.loss_mask.push_back(is_supervised ? 1 : 0);
}

RenderedChat ChatWriter::finish() {
    flush_run();
    return std::exchange(chat_, {});
}

}  // namespace dflash
