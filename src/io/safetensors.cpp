// SPDX-License-Identifier: MIT
#include "io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "base/bf16.h"
#include "base/error.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "io/safetensors_header.h"
#include "io/text.h"

namespace dflash {

namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";

std::string in_folder(const std::string& folder, const std::string& name) { return (fs::path(folder) / name).string(); }

// Without an index: model.safetensors, else the one *.safetensors file.
std::string only_file(const std::string& folder) {
    if (path_exists(in_folder(folder, "model.safetensors"))) return in_folder(folder, "model.safetensors");
    std::vector<std::string> found;
    std::error_code unread;
    for (fs::directory_iterator it(folder, unread), end; !unread && it != end; it.increment(unread)) {
        if (it->path().extension() == ".safetensors") found.push_back(it->path().filename().string());
    }
    if (unread) throw_bad_input("{}: cannot be read: {}", folder, unread.message());
    std::sort(found.begin(), found.end());
    if (found.empty()) throw_bad_input("{}: holds no *.safetensors file", folder);
    if (found.size() > 1) throw_bad_input("{}: holds several *.safetensors files ({}) but no {}", folder, joined_names(found), kIndexName);
    return in_folder(folder, found[0]);
}

std::map<std::string, std::string> read_weight_map(const std::string& index) {
    const Json json = read_json_file(index);
    if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
        throw_bad_input("{}: key 'weight_map' is missing or not an object", index);
    }
    std::map<std::string, std::string> shards;
    for (const auto& [name, shard] : json["weight_map"].items()) {
        if (!shard.is_string()) throw_bad_input("{}: weight_map of tensor '{}' is not a file name", index, printable(name));
        shards[name] = shard.get<std::string>();
        const std::string& file = shards[name];
        if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos) {
            throw_bad_input("{}: tensor '{}' names shard '{}', which is not the name of a file in this folder", index, printable(name),
                            printable(file));
        }
    }
    return shards;
}

// An interrupted download: says which shards are not there, and what would have been in them.
void check_shards_exist(const std::string& folder, const std::string& index, const std::map<std::string, std::string>& shard_of) {
    std::set<std::string> absent;
    for (const auto& [name, shard] : shard_of) {
        if (absent.count(shard) == 0 && !path_exists(in_folder(folder, shard))) absent.insert(shard);
    }
    if (absent.empty()) return;
    std::vector<std::string> tensors;
    for (const auto& [name, shard] : shard_of) {
        if (absent.count(shard) != 0) tensors.push_back(name);
    }
    throw_bad_input("{}: shards are missing from the folder: {}; they hold {} tensors: {}", index,
                    joined_names({absent.begin(), absent.end()}), tensors.size(), joined_names(tensors));
}

template <typename Storage, typename Convert>
void convert_to_f32(const char* source, float* destination, std::int64_t count, Convert convert) {
    constexpr std::int64_t kBlock = 1 << 16;
#pragma omp parallel for schedule(static)
    for (std::int64_t begin = 0; begin < count; begin += kBlock) {
        const std::int64_t end = std::min(count, begin + kBlock);
        for (std::int64_t i = begin; i < end; ++i) {
            Storage bits;
            std::memcpy(&bits, source + static_cast<std::size_t>(i) * sizeof(Storage), sizeof(Storage));
            destination[i] = convert(bits);
        }
    }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
    SafetensorsHeader header = parse_safetensors({file_.data(), file_.size()}, path);
    entries_ = std::move(header.entries);
    metadata_ = std::move(header.metadata);
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
    const auto found = entries_.find(name);
    return found == entries_.end() ? nullptr : &found->second;
}

SafetensorsFolder::SafetensorsFolder(const std::string& folder) : folder_(folder) {
    std::error_code unknown;
    if (!fs::is_directory(folder, unknown)) throw_bad_input("{}: is not a folder", folder);
    const std::string index = in_folder(folder, kIndexName);
    if (path_exists(index)) {
        open_index(index);
    } else {
        files_.emplace_back(only_file(folder));
    }
    // What the index does not name is there all the same.
    for (const SafetensorsFile& file : files_) {
        for (const auto& [name, entry] : file.entries()) {
            if (missing_.count(name) == 0) by_name_.emplace(name, &entry);
        }
    }
}

void SafetensorsFolder::open_index(const std::string& index) {
    const std::map<std::string, std::string> shard_of = read_weight_map(index);
    check_shards_exist(folder_, index, shard_of);
    std::map<std::string, std::size_t> opened;
    for (const auto& [name, shard] : shard_of) {
        if (opened.emplace(shard, files_.size()).second) files_.emplace_back(in_folder(folder_, shard));
    }
    for (const auto& [name, shard] : shard_of) {
        const SafetensorsEntry* entry = files_[opened.at(shard)].find(name);
        if (entry == nullptr) {
            missing_[name] = shard;
        } else {
            by_name_[name] = entry;
        }
    }
}

const SafetensorsEntry* SafetensorsFolder::find(const std::string& name) const {
    const auto missing = missing_.find(name);
    if (missing != missing_.end()) {
        std::string elsewhere;
        for (const SafetensorsFile& file : files_) {
            if (file.find(name) != nullptr) elsewhere = "; it is in " + file.path();
        }
        throw_bad_input("{}: tensor '{}' should be in {}, which does not hold it{}", in_folder(folder_, kIndexName), printable(name),
                        in_folder(folder_, missing->second), elsewhere);
    }
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
}

std::vector<std::string> SafetensorsFolder::names() const {
    std::vector<std::string> names;
    names.reserve(by_name_.size());
    for (const auto& [name, entry] : by_name_) names.push_back(name);
    return names;
}

const SafetensorsFile& SafetensorsFolder::file_of(const SafetensorsEntry& entry) const {
    for (const SafetensorsFile& file : files_) {
        if (file.find(entry.name) == &entry) return file;
    }
    throw_failed("tensor '{}' is not of folder {}", entry.name, folder_);
}

void SafetensorsFolder::drop_pages() const {
    for (const SafetensorsFile& file : files_) file.drop_pages();
}

void copy_entry_to_f32(const SafetensorsEntry& entry, const std::string& file, const Tensor& destination) {
    const std::int64_t count = entry.elements();
    DFLASH_CHECK(destination.elements() == count, "tensor '{}' has {} elements, its destination {}", entry.name, count,
                 destination.elements());
    DFLASH_CHECK(destination.device.type == DeviceType::kCpu, "tensor '{}' is loaded into CPU memory only", entry.name);
    float* out = destination.f32();
    if (entry.dtype == "F32") {
        convert_to_f32<float>(entry.data, out, count, [](float value) { return value; });
    } else if (entry.dtype == "BF16") {
        convert_to_f32<std::uint16_t>(entry.data, out, count, bf16_to_float);
    } else if (entry.dtype == "F16") {
        convert_to_f32<std::uint16_t>(entry.data, out, count, f16_to_float);
    } else {
        throw_bad_input("{}: tensor '{}' is {}; F32, F16 or BF16 is expected", file, printable(entry.name), entry.dtype);
    }
}

}  // namespace dflash
