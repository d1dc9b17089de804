// SPDX-License-Identifier: MIT
// A byte-level tokenizer.json made by a test: 256 byte tokens (ids 0 to 255 in the order of the byte alphabet), and what is added.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/json.h"
#include "io/tokenizer.h"
#include "io/unicode.h"

namespace dflash::testing {

class SmallTokenizer {
public:
    SmallTokenizer() {
        file_ = Json::parse(R"({"added_tokens": [], "normalizer": {"type": "NFC"}, "decoder": {"type": "ByteLevel"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": "[^\\s]+|\\s+"}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
            "model": {"type": "BPE", "vocab": {}, "merges": []}})");
        char32_t other = 256;
        for (char32_t byte = 0; byte < 256; ++byte) {
            const bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
            std::string spelt;
            append_utf8(prints ? byte : other++, spelt);
            add_word(spelt, static_cast<std::int32_t>(byte));
        }
    }
    SmallTokenizer& add_word(const std::string& spelt, std::int32_t id) {
        file_["model"]["vocab"][spelt] = id;
        return *this;
    }
    // Missing parts get the next ids from 256 on.
    SmallTokenizer& add_merge(const std::string& left, const std::string& right) {
        for (const std::string& word : {left, right, left + right}) {
            if (!file_["model"]["vocab"].contains(word)) add_word(word, next_id_++);
        }
        merges_.push_back({left, right});
        const bool needs_pair = left.find(' ') != std::string::npos || right.find(' ') != std::string::npos;
        file_["model"]["merges"].push_back(needs_pair ? Json{left, right} : Json(left + " " + right));
        return *this;
    }
    SmallTokenizer& add_raw_merge(const std::string& json) {
        file_["model"]["merges"].push_back(Json::parse(json));
        return *this;
    }
    SmallTokenizer& merges_as_pairs() {
        file_["model"]["merges"] = merges_;
        return *this;
    }
    SmallTokenizer& add_token(const std::string& content, std::int32_t id, bool special = true) {
        file_["added_tokens"].push_back({{"id", id}, {"content", content}, {"special", special}});
        return *this;
    }
    // Any member, by JSON pointer.
    SmallTokenizer& set(const std::string& pointer, const std::string& json) {
        file_[Json::json_pointer(pointer)] = Json::parse(json);
        return *this;
    }
    SmallTokenizer& without(const std::string& part, const std::string& key) {
        file_[Json::json_pointer(part.starts_with("/") ? part : "/" + part)].erase(key);
        return *this;
    }
    std::string text() const { return file_.dump(); }
    Tokenizer build() const { return Tokenizer::from_json(text(), "small.json"); }

private:
    Json file_;
    std::int32_t next_id_ = 256;
    std::vector<std::vector<std::string>> merges_;
};

}  // namespace dflash::testing
