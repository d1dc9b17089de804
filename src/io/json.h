// SPDX-License-Identifier: MIT
// JSON text and files with errors that name the file, the key and the expected type. Wraps nlohmann-json; headers elsewhere
// include only <nlohmann/json_fwd.hpp>.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace dflash {

using Json = nlohmann::json;

// Strict: one value, UTF-8, no repeated key in an object, nesting at most 256 deep. `where` names the source in errors.
// Throws Error(kBadInput).
Json parse_json(std::string_view text, const std::string& where);
Json read_json_file(const std::string& path);

// object[key] as T; Error(kBadInput) "WHERE: key 'KEY' is missing / is X, expected Y".
template <typename T>
T json_get(const Json& object, const std::string& key, const std::string& where);
// `fallback` when the key is absent or null; a value of a wrong type is still an error.
template <typename T>
T json_get_or(const Json& object, const std::string& key, const T& fallback, const std::string& where);
// Instantiated for bool, std::int64_t, double, std::string, std::vector<std::int64_t>, std::vector<std::string>.

}  // namespace dflash
