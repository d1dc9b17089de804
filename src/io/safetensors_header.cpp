// SPDX-License-Identifier: MIT
#include "io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/json.h"
#include "io/text.h"

namespace dflash {

namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kLengthBytes = 8;

struct Range {
    std::uint64_t begin = 0, end = 0;
    const std::string* name = nullptr;
};

struct Source {
    const std::string& path;
    std::string_view data;  // behind the header
};

template <typename... Args>
[[noreturn]] void refuse(const Source& source, const std::string& name, fmt::format_string<Args...> format, Args&&... args) {
    throw_bad_input("{}: tensor '{}': {}", source.path, printable(name), fmt::format(format, std::forward<Args>(args)...));
}

std::string_view header_text(std::string_view file, const std::string& path) {
    if (file.size() < kLengthBytes) throw_bad_input("{}: {} bytes are too few for a safetensors file", path, file.size());
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < kLengthBytes; ++i) length |= std::uint64_t{static_cast<unsigned char>(file[i])} << (8 * i);
    if (length > kMaxHeaderBytes) throw_bad_input("{}: header length {} is over the limit of {} bytes", path, length, kMaxHeaderBytes);
    if (length > file.size() - kLengthBytes) {
        throw_bad_input("{}: header length {} is beyond the end of the file ({} bytes)", path, length, file.size());
    }
    const std::string_view header = file.substr(kLengthBytes, length);
    if (header.empty() || header.front() != '{') throw_bad_input("{}: the header does not start with '{{'", path);
    return header;
}

const Json& member(const Source& source, const std::string& name, const Json& info, const char* key) {
    const auto found = info.find(key);
    if (found == info.end()) refuse(source, name, "'{}' is missing", key);
    return *found;
}

std::vector<std::int64_t> read_shape(const Source& source, const std::string& name, const Json& shape, std::int64_t& elements) {
    if (!shape.is_array()) refuse(source, name, "shape is not a list");
    std::vector<std::int64_t> dims;
    elements = 1;
    for (const Json& dim : shape) {
        if (!dim.is_number_unsigned() || dim.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
            refuse(source, name, "a dimension of the shape is not a whole number of at least 0");
        }
        dims.push_back(dim.get<std::int64_t>());
        if (__builtin_mul_overflow(elements, dims.back(), &elements)) refuse(source, name, "the number of elements overflows 64 bits");
    }
    return dims;
}

Range read_range(const Source& source, const std::string& name, const Json& offsets) {
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
        refuse(source, name, "data_offsets are not two whole numbers of at least 0");
    }
    Range range{offsets[0].get<std::uint64_t>(), offsets[1].get<std::uint64_t>(), nullptr};
    if (range.begin > range.end) refuse(source, name, "data_offsets [{}, {}] are reversed", range.begin, range.end);
    if (range.end > source.data.size()) {
        refuse(source, name, "data_offsets [{}, {}] reach beyond the end of the file, which holds {} bytes of data; is it cut short?",
               range.begin, range.end, source.data.size());
    }
    return range;
}

SafetensorsEntry read_entry(const Source& source, const std::string& name, const Json& info, Range& range) {
    if (!info.is_object()) refuse(source, name, "its description is not an object");
    SafetensorsEntry entry;
    entry.name = name;
    const Json& dtype = member(source, name, info, "dtype");
    if (!dtype.is_string()) refuse(source, name, "dtype is not a string");
    entry.dtype = dtype.get<std::string>();
    const std::size_t element_bytes = safetensors_dtype_bytes(entry.dtype);
    if (element_bytes == 0) refuse(source, name, "dtype '{}' is not known", printable(entry.dtype, 40));
    std::int64_t elements = 0;
    entry.shape = read_shape(source, name, member(source, name, info, "shape"), elements);
    range = read_range(source, name, member(source, name, info, "data_offsets"));
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(elements), element_bytes, &bytes)) {
        refuse(source, name, "its size in bytes overflows 64 bits");
    }
    if (bytes != range.end - range.begin) {
        refuse(source, name, "its shape and dtype take {} bytes, its data_offsets [{}, {}] hold {}", bytes, range.begin, range.end,
               range.end - range.begin);
    }
    entry.data = source.data.data() + range.begin;
    entry.bytes = bytes;
    return entry;
}

// Every byte of the data belongs to exactly one tensor.
void check_coverage(const Source& source, std::vector<Range>& ranges) {
    std::sort(ranges.begin(), ranges.end(),
              [](const Range& a, const Range& b) { return std::tie(a.begin, a.end, *a.name) < std::tie(b.begin, b.end, *b.name); });
    std::uint64_t reached = 0;
    for (const Range& range : ranges) {
        if (range.begin < reached) refuse(source, *range.name, "its data overlaps another tensor's at byte {}", range.begin);
        if (range.begin > reached) refuse(source, *range.name, "bytes {} to {} before its data belong to no tensor", reached, range.begin);
        reached = range.end;
    }
    if (reached != source.data.size()) {
        throw_bad_input("{}: {} bytes behind the last tensor belong to no tensor", source.path, source.data.size() - reached);
    }
}

std::map<std::string, std::string> read_metadata(const Json& metadata, const std::string& path) {
    if (!metadata.is_object()) throw_bad_input("{}: __metadata__ is not an object", path);
    std::map<std::string, std::string> texts;
    for (const auto& [key, value] : metadata.items()) {
        if (!value.is_string()) throw_bad_input("{}: __metadata__ key '{}' is not a string", path, printable(key));
        texts[key] = value.get<std::string>();
    }
    return texts;
}

}  // namespace

std::size_t safetensors_dtype_bytes(std::string_view dtype) {
    struct Known {
        std::string_view name;
        std::size_t bytes;
    };
    static constexpr std::array<Known, 16> kKnown = {{{"BOOL", 1},
                                                      {"U8", 1},
                                                      {"I8", 1},
                                                      {"F8_E4M3", 1},
                                                      {"F8_E5M2", 1},
                                                      {"F8_E8M0", 1},
                                                      {"U16", 2},
                                                      {"I16", 2},
                                                      {"F16", 2},
                                                      {"BF16", 2},
                                                      {"U32", 4},
                                                      {"I32", 4},
                                                      {"F32", 4},
                                                      {"U64", 8},
                                                      {"I64", 8},
                                                      {"F64", 8}}};
    for (const Known& known : kKnown) {
        if (known.name == dtype) return known.bytes;
    }
    return 0;
}

SafetensorsHeader parse_safetensors(std::string_view file, const std::string& path) {
    const std::string_view text = header_text(file, path);
    const Source source{path, file.substr(kLengthBytes + text.size())};
    const Json json = parse_json(text, path + ": header");
    SafetensorsHeader header;
    std::vector<Range> ranges;
    for (const auto& [name, info] : json.items()) {
        if (name == "__metadata__") {
            header.metadata = read_metadata(info, path);
            continue;
        }
        Range range;
        const auto added = header.entries.emplace(name, read_entry(source, name, info, range)).first;
        range.name = &added->first;
        ranges.push_back(range);
    }
    check_coverage(source, ranges);
    return header;
}

}  // namespace dflash
