// SPDX-License-Identifier: MIT
#include "io/json.h"

#include <fmt/core.h>

#include <cstdint>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/text.h"

namespace dflash {

namespace {

constexpr std::size_t kMaxDepth = 256;

// The checks that the library's own tree builder does not make. A pass of its own: its callback parser takes quadratic time in
// the number of members of an object.
class StrictPass : public Json::json_sax_t {
public:
    explicit StrictPass(const std::string& where) : where_(where) {}

    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(std::int64_t) override { return true; }
    bool number_unsigned(std::uint64_t) override { return true; }
    bool number_float(double, const std::string&) override { return true; }
    bool string(std::string&) override { return true; }
    bool binary(Json::binary_t&) override { return true; }
    bool start_object(std::size_t) override { return open(); }
    bool start_array(std::size_t) override { return open(); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }
    bool key(std::string& name) override {
        if (!keys_.back().insert(name).second) throw_bad_input("{}: key '{}' appears twice in one object", where_, printable(name));
        return true;
    }
    bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
        const std::string what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
        const std::size_t end = what.find("] ");
        throw_bad_input("{}: not valid JSON: {}", where_, printable(end == std::string::npos ? what : what.substr(end + 2)));
    }

private:
    bool open() {
        if (keys_.size() == kMaxDepth) throw_bad_input("{}: JSON is nested more than {} deep", where_, kMaxDepth);
        keys_.emplace_back();
        return true;
    }
    bool close() {
        keys_.pop_back();
        return true;
    }

    const std::string& where_;
    std::vector<std::unordered_set<std::string>> keys_;  // one set an open object or array
};

template <typename T>
struct JsonType;  // name() and matches() by C++ type

template <>
struct JsonType<bool> {
    static std::string name() { return "true or false"; }
    static bool matches(const Json& value) { return value.is_boolean(); }
};
template <>
struct JsonType<std::int64_t> {
    static std::string name() { return "an integer"; }
    static bool matches(const Json& value) {
        if (value.is_number_unsigned()) return value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX);
        return value.is_number_integer();
    }
};
template <>
struct JsonType<double> {
    static std::string name() { return "a number"; }
    static bool matches(const Json& value) { return value.is_number(); }
};
template <>
struct JsonType<std::string> {
    static std::string name() { return "a string"; }
    static bool matches(const Json& value) { return value.is_string(); }
};
template <typename Element>
struct JsonType<std::vector<Element>> {
    static std::string name() { return "a list, each element " + JsonType<Element>::name(); }
    static bool matches(const Json& value) {
        if (!value.is_array()) return false;
        for (const Json& element : value) {
            if (!JsonType<Element>::matches(element)) return false;
        }
        return true;
    }
};

const Json* find_member(const Json& object, const std::string& key, const std::string& where) {
    if (!object.is_object()) throw_bad_input("{}: is {}, expected an object with key '{}'", where, object.type_name(), key);
    const auto member = object.find(key);
    return member == object.end() ? nullptr : &*member;
}

template <typename T>
T convert(const Json& value, const std::string& key, const std::string& where) {
    if (!JsonType<T>::matches(value)) {
        throw_bad_input("{}: key '{}' is {}, expected {}", where, key,
                        printable(value.dump(-1, ' ', false, Json::error_handler_t::replace), 60), JsonType<T>::name());
    }
    return value.get<T>();
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
    // The library takes a zero byte for the end of the text and would not look behind it.
    if (text.find('\0') != std::string_view::npos) throw_bad_input("{}: not valid JSON: holds a zero byte", where);
    StrictPass strict(where);
    Json::sax_parse(text.begin(), text.end(), &strict);
    return Json::parse(text.begin(), text.end());
}

Json read_json_file(const std::string& path) { return parse_json(read_file(path), path); }

template <typename T>
T json_get(const Json& object, const std::string& key, const std::string& where) {
    const Json* value = find_member(object, key, where);
    if (value == nullptr) throw_bad_input("{}: key '{}' is missing", where, key);
    return convert<T>(*value, key, where);
}

template <typename T>
T json_get_or(const Json& object, const std::string& key, const T& fallback, const std::string& where) {
    const Json* value = find_member(object, key, where);
    return value == nullptr || value->is_null() ? fallback : convert<T>(*value, key, where);
}

#define DFLASH_JSON_TYPE(T)                                                      \
    template T json_get<T>(const Json&, const std::string&, const std::string&); \
    template T json_get_or<T>(const Json&, const std::string&, const T&, const std::string&)
DFLASH_JSON_TYPE(bool);
DFLASH_JSON_TYPE(std::int64_t);
DFLASH_JSON_TYPE(double);
DFLASH_JSON_TYPE(std::string);
DFLASH_JSON_TYPE(std::vector<std::int64_t>);
DFLASH_JSON_TYPE(std::vector<std::string>);
#undef DFLASH_JSON_TYPE

}  // namespace dflash
