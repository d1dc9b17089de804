// SPDX-License-Identifier: MIT
// safetensors files: u64 little-endian header length, JSON header, data. Everything in the header is checked against the
// file before any consumer sees it; a malformed one is Error(kBadInput) naming file, tensor and the rule broken.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/mapped_file.h"
#include "tensor/tensor.h"

namespace dflash {

struct SafetensorsEntry {
    std::string name;
    std::string dtype;                // as spelt in the file: "F32", "BF16", "F16", "I32", "I64", "U8", "BOOL", ...
    std::vector<std::int64_t> shape;  // any rank
    const char* data = nullptr;       // into the mapping
    std::size_t bytes = 0;
    std::int64_t elements() const {
        std::int64_t n = 1;
        for (const std::int64_t d : shape) n *= d;
        return n;
    }
};

class SafetensorsFile {
public:
    explicit SafetensorsFile(const std::string& path);
    const std::string& path() const { return file_.path(); }
    const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
    const std::map<std::string, std::string>& metadata() const { return metadata_; }
    const SafetensorsEntry* find(const std::string& name) const;
    void drop_pages() const { file_.drop_pages(); }

private:
    MappedFile file_;
    std::map<std::string, SafetensorsEntry> entries_;
    std::map<std::string, std::string> metadata_;
};

// A checkpoint folder: `model.safetensors.index.json` if present (its file names are followed, never guessed), else
// `model.safetensors`, else the single *.safetensors file. Missing shards and tensors are listed by name.
class SafetensorsFolder {
public:
    explicit SafetensorsFolder(const std::string& folder);
    const SafetensorsEntry* find(const std::string& name) const;  // null when absent; throws when the index names a missing one
    std::vector<std::string> names() const;                       // of the tensors that are there
    const std::vector<SafetensorsFile>& files() const { return files_; }
    const SafetensorsFile& file_of(const SafetensorsEntry& entry) const;
    // Named by the index, absent from its shard: tensor -> shard.
    const std::map<std::string, std::string>& missing() const { return missing_; }
    const std::string& folder() const { return folder_; }
    void drop_pages() const;

private:
    void open_index(const std::string& index);
    std::string folder_;
    std::vector<SafetensorsFile> files_;
    std::map<std::string, const SafetensorsEntry*> by_name_;
    std::map<std::string, std::string> missing_;
};

// Copies an entry into a f32 CPU tensor of the same element count, converting F32/F16/BF16; other dtypes are refused by name.
// Multi-threaded; the data need not be aligned.
void copy_entry_to_f32(const SafetensorsEntry& entry, const std::string& file, const Tensor& destination);

// Streams tensors to a file that appears only when finish() returns. The header is fixed first, so nothing is held in memory; wide
// dtypes are laid out first, so that every tensor is aligned to its elements. Disk errors are Error(kFailed).
class SafetensorsWriter {
public:
    struct Declared {
        std::string name;
        std::string dtype;  // "F32", "BF16", "I32", "U8", ...
        std::vector<std::int64_t> shape;
    };
    SafetensorsWriter(const std::string& path, const std::vector<Declared>& tensors,
                      const std::map<std::string, std::string>& metadata = {});
    ~SafetensorsWriter();  // an unfinished file is removed
    SafetensorsWriter(const SafetensorsWriter&) = delete;
    SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
    // In any order; a tensor whole, or in consecutive parts that make up its declared size. f32 tensors are converted when BF16 was declared.
    // Host memory.
    void write(const std::string& name, const void* data, std::size_t bytes);
    void write(const std::string& name, const Tensor& tensor);
    void finish();  // sync + rename; Error(kFailed) when a declared tensor was not written

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace dflash
