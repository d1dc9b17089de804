// SPDX-License-Identifier: MIT
#include "io/json.h"

#include <gtest/gtest.h>

#include <string>

#include "support/errors.h"
#include "support/temporary_folder.h"

namespace dflash {
namespace {

using testing::refuses;

std::string nested(int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') + std::string(static_cast<std::size_t>(depth), ']');
}

TEST(Json, ReadsOneValue) {
    const Json json = parse_json(R"( {"a": [1, -2, 2.5, true, null, "ä\u00e9"]} )", "x");
    EXPECT_EQ(json["a"].size(), 6U);
    EXPECT_EQ(json["a"][5], "äé");
}

TEST(Json, RefusesWhatIsNotOneStrictValue) {
    struct Case {
        std::string text, fragment;
    };
    using namespace std::string_literals;
    for (const Case& c :
         {Case{"", "not valid JSON"}, Case{"{} {}", "not valid JSON"}, Case{"{\"a\":1,}", "line 1"}, Case{"{\n\"a\": }", "line 2"},
          Case{"\"\xff\"", "not valid JSON"}, Case{"\"\\ud800\"", "not valid JSON"}, Case{"{}\0{"s, "zero byte"},
          Case{"1e999", "not valid JSON"}, Case{"NaN", "not valid JSON"}, Case{R"({"a":1,"b":{"c":1,"c":2}})", "'c' appears twice"},
          Case{nested(257), "256 deep"}, Case{std::string(100000, '['), "256 deep"}}) {
        EXPECT_TRUE(refuses([&] { parse_json(c.text, "some.json"); }, {"some.json: ", c.fragment})) << c.text.substr(0, 40);
    }
}

TEST(Json, TakesTheDeepestNestingAllowedAndEqualKeysInDifferentObjects) {
    EXPECT_TRUE(parse_json(nested(256), "x").is_array());
    EXPECT_EQ(parse_json(R"([{"a":1},{"a":{"a":2}}])", "x").size(), 2U);
}

TEST(Json, ObjectsOfManyMembersTakeLinearTime) {
    std::string text = "{";
    constexpr int kMembers = 200000;
    for (int i = 0; i < kMembers; ++i) text += (i ? "," : "") + std::string("\"k") + std::to_string(i) + "\":{\"a\":[1]}";
    EXPECT_EQ(parse_json(text + "}", "x").size(), static_cast<std::size_t>(kMembers));
}

TEST(Json, MembersByTypeNameFileKeyAndType) {
    const Json json =
        parse_json(R"({"i":3,"u":18446744073709551615,"f":1.5,"s":"t","b":true,"n":null,"l":[1,2],"m":[1,"x"],"t":["x"]})", "x");
    EXPECT_EQ(json_get<std::int64_t>(json, "i", "f.json"), 3);
    EXPECT_EQ(json_get<double>(json, "i", "f.json"), 3.0);
    EXPECT_EQ(json_get<std::string>(json, "s", "f.json"), "t");
    EXPECT_TRUE(json_get<bool>(json, "b", "f.json"));
    EXPECT_EQ(json_get<std::vector<std::int64_t>>(json, "l", "f.json"), (std::vector<std::int64_t>{1, 2}));
    EXPECT_EQ(json_get<std::vector<std::string>>(json, "t", "f.json"), (std::vector<std::string>{"x"}));
    EXPECT_EQ(json_get_or<std::int64_t>(json, "absent", 7, "f.json"), 7);
    EXPECT_EQ(json_get_or<std::int64_t>(json, "n", 7, "f.json"), 7);

    EXPECT_TRUE(refuses([&] { json_get<std::int64_t>(json, "absent", "f.json"); }, {"f.json", "'absent'", "missing"}));
    EXPECT_TRUE(refuses([&] { json_get<std::int64_t>(json, "f", "f.json"); }, {"f.json", "'f'", "1.5", "an integer"}));
    EXPECT_TRUE(refuses([&] { json_get<std::int64_t>(json, "u", "f.json"); }, {"'u'", "an integer"}));
    EXPECT_TRUE(refuses([&] { json_get<std::int64_t>(json, "n", "f.json"); }, {"'n'", "null"}));
    EXPECT_TRUE(refuses([&] { json_get_or<std::int64_t>(json, "s", 1, "f.json"); }, {"'s'", "\"t\""}));
    EXPECT_TRUE(refuses([&] { json_get<std::vector<std::int64_t>>(json, "m", "f.json"); }, {"'m'", "a list"}));
    EXPECT_TRUE(refuses([&] { json_get<bool>(json["l"], "b", "f.json"); }, {"is array", "object"}));
}

TEST(Json, UnreadableFilesAreNamed) {
    const testing::TemporaryFolder folder;
    EXPECT_TRUE(refuses([&] { read_json_file(folder.file("absent.json")); }, {"absent.json", "No such file"}));
    EXPECT_TRUE(refuses([&] { read_json_file(folder.path()); }, {folder.path(), "Is a directory"}));
}

}  // namespace
}  // namespace dflash
