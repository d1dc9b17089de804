// SPDX-License-Identifier: MIT
// A prepared data set on disk (what `dflash prepare` writes): token shards with loss masks, and a manifest with template, tokenizer
// fingerprint, counts and checksums. Memory-mapped; opening checks every size against the manifest.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/chat_template.h"

namespace dflash {

struct PrepareSettings {
    std::vector<std::string> inputs;  // JSONL files
    std::string target;               // folder with tokenizer.json (and tokenizer_config.json for --template auto)
    std::string out;                  // folder to make
    ChatTemplate chat_template;
    std::int64_t max_length = 0;     // tokens a document may have; longer ones are truncated and counted; 0 = unlimited
    bool strict = false;             // any refused row is an error
    bool keep_unsupervised = false;  // also rows in which no block can be trained (for looking at features)
};
struct PrepareReport {
    std::int64_t rows_in = 0, rows_used = 0, rows_truncated = 0;
    std::map<std::string, std::int64_t> refused;  // reason -> rows
    std::int64_t tokens = 0, supervised_tokens = 0;
    std::int64_t control_text_rows = 0;  // rows whose message text spells a control token (encoded as plain text)
};
// Error(kBadInput) when no row is usable ("0 of 40 rows usable: ..."); nothing is left half written.
PrepareReport prepare_dataset(const PrepareSettings& settings);

struct DocumentView {
    std::span<const std::int32_t> ids;
    std::span<const std::uint8_t> loss_mask;
};
class Dataset {
public:
    // Error(kBadInput) when the folder is no prepared data set, or a shard was cut or changed.
    explicit Dataset(const std::string& folder);
    // The same documents straight from JSONL files, in memory, through the same code; `settings.out` is not used.
    static Dataset from_jsonl(const PrepareSettings& settings);
    ~Dataset();
    Dataset(Dataset&&) noexcept;
    Dataset& operator=(Dataset&&) noexcept;
    std::int64_t documents() const;
    std::int64_t tokens() const;
    DocumentView document(std::int64_t row) const;
    std::string document_id(std::int64_t row) const;  // the chat row's id
    ChatTemplate chat_template() const;
    const PrepareReport& report() const;
    std::string tokenizer_fingerprint() const;
    std::string fingerprint() const;  // hash of the content; resume refuses another one
    std::string folder() const;       // empty when made in memory

private:
    struct Impl;
    explicit Dataset(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace dflash
