// SPDX-License-Identifier: MIT
#include "io/tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/bpe.h"
#include "io/byte_alphabet.h"
#include "io/split_pattern.h"
#include "io/text.h"
#include "io/tokenizer_file.h"
#include "io/unicode.h"

namespace dflash {

namespace {

// Finds the longest added token that starts at a place. Tokens are few and their first bytes fewer.
class AddedTokenFinder {
public:
    void add(const std::string& content, std::size_t token) {
        auto& bucket = by_first_byte_[static_cast<unsigned char>(content[0])];
        const auto shorter = [&](const Entry& entry) { return entry.content.size() < content.size(); };
        bucket.insert(std::find_if(bucket.begin(), bucket.end(), shorter), {content, token});
    }

    // Cuts `text` at the tokens: plain(stretch) and token(place in added_tokens, stretch) are called in the order of the text.
    template <typename Plain, typename Token>
    void cut(std::string_view text, Plain plain, Token token) const {
        std::size_t begin = 0;
        for (std::size_t at = 0; at < text.size();) {
            const Entry* found = longest_at(text.substr(at));
            if (found == nullptr) {
                ++at;
                continue;
            }
            if (at > begin) plain(text.substr(begin, at - begin));
            token(found->token, text.substr(at, found->content.size()));
            begin = at = at + found->content.size();
        }
        if (begin < text.size()) plain(text.substr(begin));
    }

private:
    struct Entry {
        std::string content;
        std::size_t token;
    };
    const Entry* longest_at(std::string_view text) const {
        for (const Entry& entry : by_first_byte_[static_cast<unsigned char>(text[0])]) {
            if (text.starts_with(entry.content)) return &entry;
        }
        return nullptr;
    }

    std::array<std::vector<Entry>, 256> by_first_byte_;  // longest first
};

}  // namespace

struct Tokenizer::Impl {
    std::string path;
    std::string fingerprint;
    TokenizerFile file;
    Bpe bpe;
    std::unordered_map<std::string, std::int32_t> whole_words;  // bytes -> id; filled for ignore_merges alone
    std::vector<std::optional<std::string>> bytes_of_id;
    std::vector<SplitPattern> patterns;
    AddedTokenFinder all_added;
    AddedTokenFinder raw_added;         // those looked for before normalization
    AddedTokenFinder normalized_added;  // and after

    void index_vocabulary();
    void index_added_tokens();
    void set_bytes(std::int32_t id, const std::string& bytes, const std::string& token);

    void encode_piece(std::string_view piece, bool parse_added, std::vector<std::int32_t>& ids) const;
    void encode_normalized(std::string_view text, std::vector<std::int32_t>& ids) const;
    void encode_word(std::string_view word, std::vector<std::int32_t>& ids) const;
};

void Tokenizer::Impl::set_bytes(std::int32_t id, const std::string& bytes, const std::string& token) {
    if (static_cast<std::size_t>(id) >= bytes_of_id.size()) bytes_of_id.resize(static_cast<std::size_t>(id) + 1);
    auto& slot = bytes_of_id[static_cast<std::size_t>(id)];
    if (slot && *slot != bytes) throw_bad_input("{}: id {} is given twice, the second time to '{}'", path, id, printable(token, 40));
    slot = bytes;
}

void Tokenizer::Impl::index_vocabulary() {
    for (const auto& [token, id] : file.vocabulary) {
        const auto bytes = bytes_from_alphabet(token);
        set_bytes(id, bytes.value_or(token), token);  // spelt outside the alphabet: stands for itself, and no text leads to it
        if (!bytes) continue;
        if (bytes->size() == 1) bpe.byte_tokens[static_cast<unsigned char>(bytes->front())] = id;
        if (file.ignore_merges) whole_words.emplace(*bytes, id);
    }
    for (std::size_t rank = 0; rank < file.merges.size(); ++rank) {
        const TokenizerFile::Merge& merge = file.merges[rank];
        bpe.add_merge(merge.left, merge.right, static_cast<std::int32_t>(rank), merge.merged);
    }
}

void Tokenizer::Impl::index_added_tokens() {
    for (std::size_t i = 0; i < file.added_tokens.size(); ++i) {
        const AddedToken& token = file.added_tokens[i];
        const auto known = file.vocabulary.find(token.content);
        if (known != file.vocabulary.end() && known->second != token.id) {
            throw_bad_input("{}: added token '{}' has id {}, but model.vocab says {}", path, printable(token.content, 40), token.id,
                            known->second);
        }
        if (known == file.vocabulary.end()) set_bytes(token.id, token.content, token.content);
        bytes_of_id[static_cast<std::size_t>(token.id)] = token.content;
        all_added.add(token.content, i);
        if (file.is_added_normalized[i]) {
            normalized_added.add(file.is_nfc ? to_nfc(token.content) : token.content, i);
        } else {
            raw_added.add(token.content, i);
        }
    }
}

void Tokenizer::Impl::encode_piece(std::string_view piece, bool parse_added, std::vector<std::int32_t>& ids) const {
    const std::string normalized = file.is_nfc ? to_nfc(piece) : std::string(piece);
    if (!parse_added) return encode_normalized(normalized, ids);
    normalized_added.cut(
        normalized, [&](std::string_view text) { encode_normalized(text, ids); },
        [&](std::size_t token, std::string_view) { ids.push_back(file.added_tokens[token].id); });
}

void Tokenizer::Impl::encode_normalized(std::string_view text, std::vector<std::int32_t>& ids) const {
    std::vector<std::string_view> pieces = {text};
    std::vector<std::string_view> finer;
    for (const SplitPattern& pattern : patterns) {
        finer.clear();
        for (const std::string_view piece : pieces) pattern.split(piece, finer);
        pieces.swap(finer);
    }
    for (const std::string_view word : pieces) encode_word(word, ids);
}

void Tokenizer::Impl::encode_word(std::string_view word, std::vector<std::int32_t>& ids) const {
    if (file.ignore_merges) {
        const auto whole = whole_words.find(std::string(word));
        if (whole != whole_words.end()) return ids.push_back(whole->second);
    }
    const auto missing = bpe.encode(word, ids);
    if (missing) throw_bad_input("{}: the text holds byte 0x{:02X}, for which model.vocab has no token", path, *missing);
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Tokenizer Tokenizer::from_json(std::string_view text, const std::string& where) {
    auto impl = std::make_unique<Impl>();
    impl->path = where;
    impl->fingerprint = sha256_hex(text);
    impl->file = parse_tokenizer_file(text, where);
    for (const auto& pattern : impl->file.patterns) impl->patterns.emplace_back(pattern.text, pattern.syntax, where);
    impl->index_vocabulary();
    impl->index_added_tokens();
    return Tokenizer(std::move(impl));
}

Tokenizer::Tokenizer(const std::string& path) {
    const std::string file = std::filesystem::is_directory(path) ? path + "/tokenizer.json" : path;
    *this = from_json(read_file(file), file);
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool parse_added) const {
    if (const auto bad = find_invalid_utf8(text)) throw_bad_input("text to encode is not UTF-8 at byte {}", *bad);
    if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()) / 4) {
        throw_bad_input("text to encode is {} bytes long; at most 512 MiB can be encoded at once", text.size());
    }
    std::vector<std::int32_t> ids;
    const auto plain = [&](std::string_view piece) { impl_->encode_piece(piece, parse_added, ids); };
    if (parse_added) {
        impl_->raw_added.cut(text, plain, [&](std::size_t token, std::string_view) { ids.push_back(impl_->file.added_tokens[token].id); });
    } else if (!text.empty()) {
        plain(text);
    }
    return ids;
}

std::vector<AddedTokenSpan> Tokenizer::find_added_tokens(std::string_view text) const {
    std::vector<AddedTokenSpan> spans;
    const auto found = [&](std::size_t token, std::string_view stretch) {
        const auto begin = static_cast<std::size_t>(stretch.data() - text.data());
        spans.push_back({begin, begin + stretch.size(), &impl_->file.added_tokens[token]});
    };
    impl_->all_added.cut(
        text, [](std::string_view) {}, found);
    return spans;
}

std::string Tokenizer::normalized(std::string_view text) const { return impl_->file.is_nfc ? to_nfc(text) : std::string(text); }

std::string Tokenizer::decode(const std::vector<std::int32_t>& ids, bool skip_special) const {
    std::string text;
    for (const std::int32_t id : ids) {
        const auto is_this = [id](const AddedToken& token) { return token.id == id && token.special; };
        const auto& added = impl_->file.added_tokens;
        if (skip_special && std::any_of(added.begin(), added.end(), is_this)) continue;
        text += token_bytes(id);
    }
    return text;
}

std::string Tokenizer::token_bytes(std::int32_t id) const {
    const auto& bytes_of_id = impl_->bytes_of_id;
    if (id < 0 || static_cast<std::size_t>(id) >= bytes_of_id.size() || !bytes_of_id[static_cast<std::size_t>(id)]) {
        throw_bad_input("{}: there is no token with id {}", impl_->path, id);
    }
    return *bytes_of_id[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> Tokenizer::token_id(std::string_view token) const {
    for (const AddedToken& added : impl_->file.added_tokens) {
        if (added.content == token) return added.id;
    }
    const auto known = impl_->file.vocabulary.find(std::string(token));
    return known == impl_->file.vocabulary.end() ? std::nullopt : std::optional(known->second);
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const { return impl_->file.added_tokens; }
std::int64_t Tokenizer::vocabulary_size() const { return static_cast<std::int64_t>(impl_->bytes_of_id.size()); }
std::int64_t Tokenizer::num_merges() const { return static_cast<std::int64_t>(impl_->file.merges.size()); }
std::string Tokenizer::fingerprint() const { return impl_->fingerprint; }

}  // namespace dflash
