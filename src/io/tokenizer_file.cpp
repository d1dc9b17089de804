// SPDX-License-Identifier: MIT
#include "io/tokenizer_file.h"

#include <optional>

#include "base/error.h"
#include "io/json.h"
#include "io/text.h"

namespace dflash {

namespace {

// The pattern of a ByteLevel pre-tokenizer with use_regex (GPT-2's).
constexpr const char* kByteLevelPattern = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string type_of(const Json& part, const std::string& where) {
    if (!part.is_object()) throw_bad_input("{}: is {}, expected an object with a 'type'", where, part.type_name());
    return json_get<std::string>(part, "type", where);
}

std::int32_t checked_id(const Json& value, const std::string& token, const std::string& where) {
    const bool fits = value.is_number_unsigned() && value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kLargestTokenId);
    if (!fits) throw_bad_input("{}: id of token '{}' must be a whole number from 0 to {}", where, printable(token, 40), kLargestTokenId);
    return value.get<std::int32_t>();
}

// The parts of a member that is null, one part, or a Sequence of them under `list_key`.
std::vector<Json> parts_of(const Json& file, const std::string& key, const std::string& list_key, const std::string& where) {
    const auto member = file.find(key);
    if (member == file.end() || member->is_null()) return {};
    if (type_of(*member, where + ": " + key) != "Sequence") return {*member};
    const auto list = member->find(list_key);
    if (list == member->end() || !list->is_array()) throw_bad_input("{}: {}: Sequence without a list '{}'", where, key, list_key);
    return {list->begin(), list->end()};
}

void read_normalizer(const Json& file, const std::string& where, TokenizerFile& out) {
    for (const Json& part : parts_of(file, "normalizer", "normalizers", where)) {
        const std::string type = type_of(part, where + ": normalizer");
        if (type != "NFC") throw_bad_input("{}: normalizer '{}' is not supported (NFC and none are)", where, printable(type, 40));
        out.is_nfc = true;
    }
}

void read_split(const Json& part, const std::string& where, TokenizerFile& out) {
    const auto behavior = json_get<std::string>(part, "behavior", where);
    if (behavior != "Isolated") throw_bad_input("{}: Split behavior '{}' is not supported (Isolated is)", where, printable(behavior, 40));
    if (json_get_or<bool>(part, "invert", false, where)) throw_bad_input("{}: an inverted Split is not supported", where);
    const auto pattern = part.find("pattern");
    if (pattern == part.end() || !pattern->is_object()) throw_bad_input("{}: Split without a pattern", where);
    if (pattern->contains("Regex")) {
        out.patterns.push_back({json_get<std::string>(*pattern, "Regex", where), SplitPattern::Syntax::kRegex});
    } else {
        out.patterns.push_back({json_get<std::string>(*pattern, "String", where), SplitPattern::Syntax::kLiteral});
    }
}

void read_pre_tokenizer(const Json& file, const std::string& file_name, TokenizerFile& out) {
    const std::string where = file_name + ": pre_tokenizer";
    bool is_byte_level = false;
    for (const Json& part : parts_of(file, "pre_tokenizer", "pretokenizers", file_name)) {
        const std::string type = type_of(part, where);
        if (is_byte_level) throw_bad_input("{}: '{}' behind ByteLevel is not supported", where, printable(type, 40));
        if (type == "Split") {
            read_split(part, where, out);
        } else if (type == "Digits") {
            const bool one_by_one = json_get_or<bool>(part, "individual_digits", false, where);
            out.patterns.push_back({one_by_one ? "\\p{N}" : "\\p{N}+", SplitPattern::Syntax::kRegex});
        } else if (type == "ByteLevel") {
            is_byte_level = true;
            if (json_get_or<bool>(part, "add_prefix_space", true, where)) throw_bad_input("{}: add_prefix_space is not supported", where);
            if (json_get_or<bool>(part, "use_regex", true, where)) {
                out.patterns.push_back({kByteLevelPattern, SplitPattern::Syntax::kRegex});
            }
        } else {
            throw_bad_input("{}: '{}' is not supported (Split, Digits and ByteLevel are)", where, printable(type, 40));
        }
    }
    if (!is_byte_level) throw_bad_input("{}: no ByteLevel part; only byte-level BPE is supported", where);
}

void read_decoder(const Json& file, const std::string& where) {
    for (const Json& part : parts_of(file, "decoder", "decoders", where)) {
        const std::string type = type_of(part, where + ": decoder");
        if (type != "ByteLevel") throw_bad_input("{}: decoder '{}' is not supported (ByteLevel is)", where, printable(type, 40));
    }
}

void read_vocabulary(const Json& model, const std::string& where, TokenizerFile& out) {
    const auto vocabulary = model.find("vocab");
    if (vocabulary == model.end() || !vocabulary->is_object() || vocabulary->empty()) {
        throw_bad_input("{}: model.vocab must be an object with at least one token", where);
    }
    out.vocabulary.reserve(vocabulary->size());
    for (const auto& [token, id] : vocabulary->items()) out.vocabulary.emplace(token, checked_id(id, token, where));
}

// Either spelling, "a b" or ["a", "b"]; nothing when the entry is neither.
std::optional<std::pair<std::string, std::string>> split_merge(const Json& entry) {
    if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
        return std::pair{entry[0].get<std::string>(), entry[1].get<std::string>()};
    }
    if (!entry.is_string()) return std::nullopt;
    const auto& text = entry.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) return std::nullopt;
    return std::pair{text.substr(0, space), text.substr(space + 1)};
}

void read_merges(const Json& model, const std::string& where, TokenizerFile& out) {
    const auto merges = model.find("merges");
    if (merges == model.end() || !merges->is_array()) throw_bad_input("{}: model.merges must be a list", where);
    out.merges.reserve(merges->size());
    const auto id_of = [&](const std::string& token) {
        const auto entry = out.vocabulary.find(token);
        if (entry == out.vocabulary.end()) {
            throw_bad_input("{}: merge {} needs token '{}', which model.vocab lacks", where, out.merges.size(), printable(token, 40));
        }
        return entry->second;
    };
    for (const Json& entry : *merges) {
        const auto pair = split_merge(entry);
        if (!pair || pair->first.empty() || pair->second.empty()) {
            throw_bad_input("{}: merge {} cannot be read: {} (expected \"a b\" or [\"a\", \"b\"])", where, out.merges.size(),
                            printable(entry.dump(-1, ' ', false, Json::error_handler_t::replace), 60));
        }
        out.merges.push_back({id_of(pair->first), id_of(pair->second), id_of(pair->first + pair->second)});
    }
}

void refuse_unless_empty(const Json& model, const char* key, const std::string& where) {
    const auto member = model.find(key);
    if (member == model.end() || member->is_null() || *member == Json("")) return;
    throw_bad_input("{}: model.{} is not supported", where, key);
}

void read_model(const Json& file, const std::string& where, TokenizerFile& out) {
    const auto model = file.find("model");
    if (model == file.end() || !model->is_object()) throw_bad_input("{}: no object 'model'", where);
    const auto type = json_get_or<std::string>(*model, "type", "BPE", where);
    if (type != "BPE") throw_bad_input("{}: model '{}' is not supported (byte-level BPE is)", where, printable(type, 40));
    refuse_unless_empty(*model, "continuing_subword_prefix", where);
    refuse_unless_empty(*model, "end_of_word_suffix", where);
    if (json_get_or<double>(*model, "dropout", 0, where) != 0) throw_bad_input("{}: model.dropout is not supported", where);
    if (json_get_or<bool>(*model, "byte_fallback", false, where)) throw_bad_input("{}: model.byte_fallback is not supported", where);
    out.ignore_merges = json_get_or<bool>(*model, "ignore_merges", false, where);
    read_vocabulary(*model, where, out);
    read_merges(*model, where, out);
}

void read_added_tokens(const Json& file, const std::string& where, TokenizerFile& out) {
    const auto list = file.find("added_tokens");
    if (list == file.end() || list->is_null()) return;
    if (!list->is_array()) throw_bad_input("{}: added_tokens must be a list", where);
    for (const Json& entry : *list) {
        AddedToken token;
        token.content = json_get<std::string>(entry, "content", where + ": added token");
        const std::string name = where + ": added token '" + printable(token.content, 40) + "'";
        if (token.content.empty()) throw_bad_input("{} is empty", name);
        const auto id = entry.find("id");
        token.id = checked_id(id == entry.end() ? Json() : *id, token.content, where);
        token.special = json_get_or<bool>(entry, "special", false, name);
        for (const char* key : {"lstrip", "rstrip", "single_word"}) {
            if (json_get_or<bool>(entry, key, false, name)) throw_bad_input("{}: {} is not supported", name, key);
        }
        out.is_added_normalized.push_back(json_get_or<bool>(entry, "normalized", false, name));
        out.added_tokens.push_back(std::move(token));
    }
}

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view text, const std::string& where) {
    const Json file = parse_json(text, where);
    if (!file.is_object()) throw_bad_input("{}: is {}, expected an object", where, file.type_name());
    TokenizerFile out;
    read_model(file, where, out);
    read_normalizer(file, where, out);
    read_pre_tokenizer(file, where, out);
    read_decoder(file, where);
    read_added_tokens(file, where, out);
    return out;
}

}  // namespace dflash
