// SPDX-License-Identifier: MIT
// The reader on files that are malformed, odd or large.
#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "io/raw_safetensors.h"
#include "support/data.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace dflash {
namespace {

using testing::little_endian;
using testing::one_tensor;
using testing::raw_safetensors;
using testing::refuses;

struct Malformed {
    const char* what;
    std::string content;
    std::vector<std::string> fragments;
};

std::string two_tensors(const std::string& first, const std::string& second) {
    const auto tensor = [](const std::string& offsets) { return "{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" + offsets + "}"; };
    return "{\"a\":" + tensor(first) + ",\"b\":" + tensor(second) + "}";
}

std::vector<Malformed> malformed_files() {
    const std::string good = one_tensor("F32", "[1]", "[0,4]");
    return {
        {"shape larger than the range", raw_safetensors(one_tensor("F32", "[1000,1000]", "[0,4]"), 4), {"'a'", "4000000 bytes"}},
        {"range larger than the shape", raw_safetensors(one_tensor("F32", "[1]", "[0,8]"), 8), {"'a'", "4 bytes"}},
        {"reversed range", raw_safetensors(one_tensor("F32", "[1]", "[8,4]"), 8), {"'a'", "reversed"}},
        {"negative offset", raw_safetensors(one_tensor("F32", "[2]", "[-4,4]"), 4), {"'a'", "data_offsets"}},
        {"negative zero", raw_safetensors(one_tensor("F32", "[1]", "[-0,4]"), 4), {"'a'", "data_offsets"}},
        {"one offset", raw_safetensors(one_tensor("F32", "[1]", "[4]"), 4), {"'a'", "data_offsets"}},
        {"three offsets", raw_safetensors(one_tensor("F32", "[1]", "[0,4,8]"), 8), {"'a'", "data_offsets"}},
        {"float offsets", raw_safetensors(one_tensor("F32", "[1]", "[0.0,4.0]"), 4), {"'a'", "data_offsets"}},
        {"offsets that are text", raw_safetensors(one_tensor("F32", "[1]", "\"0,4\""), 4), {"'a'", "data_offsets"}},
        {"offsets beyond 2^63", raw_safetensors(one_tensor("F32", "[1]", "[9223372036854775808,9223372036854775812]"), 4), {"'a'", "end"}},
        {"offsets beyond 2^64", raw_safetensors(one_tensor("F32", "[1]", "[0,18446744073709551620]"), 4), {"'a'", "data_offsets"}},
        {"range beyond the file", raw_safetensors(one_tensor("F32", "[4]", "[0,16]"), 15), {"'a'", "cut short"}},
        {"header length 2^63", little_endian(std::uint64_t{1} << 63) + good, {"header length", "limit"}},
        {"header length 2^64-1", little_endian(~std::uint64_t{0}) + good, {"header length", "limit"}},
        {"header length 2^64-5", little_endian(0xFFFFFFFFFFFFFFFBULL) + good, {"header length", "limit"}},
        {"header length 0", little_endian(0) + good, {"'{'"}},
        {"header length over the file", little_endian(good.size() + 5) + good + "\1\1\1\1", {"header length", "end of the file"}},
        {"overlap", raw_safetensors(two_tensors("[0,4]", "[2,6]"), 6), {"'b'", "overlaps"}},
        {"the same range twice", raw_safetensors(two_tensors("[0,4]", "[0,4]"), 4), {"'b'", "overlaps"}},
        {"gap between tensors", raw_safetensors(two_tensors("[0,4]", "[5,9]"), 9), {"'b'", "no tensor"}},
        {"gap before the first", raw_safetensors(one_tensor("U8", "[4]", "[1,5]"), 5), {"'a'", "no tensor"}},
        {"trailing bytes", raw_safetensors(good, 5), {"1 bytes behind the last tensor"}},
        {"data without tensors", raw_safetensors("{}", 3), {"3 bytes"}},
        {"unknown dtype", raw_safetensors(one_tensor("F7", "[1]", "[0,4]"), 4), {"'a'", "F7"}},
        {"dtype is a number", raw_safetensors(R"({"a":{"dtype":4,"shape":[1],"data_offsets":[0,4]}})", 4), {"'a'", "dtype"}},
        {"no dtype", raw_safetensors(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4), {"'a'", "'dtype' is missing"}},
        {"no shape", raw_safetensors(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4), {"'a'", "'shape' is missing"}},
        {"no offsets", raw_safetensors(R"({"a":{"dtype":"F32","shape":[1]}})", 4), {"'a'", "'data_offsets' is missing"}},
        {"negative dimension", raw_safetensors(one_tensor("F32", "[-1]", "[0,4]"), 4), {"'a'", "dimension"}},
        {"float dimension", raw_safetensors(one_tensor("F32", "[1.0]", "[0,4]"), 4), {"'a'", "dimension"}},
        {"elements overflow", raw_safetensors(one_tensor("F32", "[4294967296,4294967296]", "[0,4]"), 4), {"'a'", "overflows"}},
        {"elements overflow before a zero", raw_safetensors(one_tensor("F32", "[4294967296,4294967296,0]", "[0,0]"), 0), {"overflows"}},
        {"bytes overflow", raw_safetensors(one_tensor("F32", "[4611686018427387905]", "[0,4]"), 4), {"'a'", "overflows"}},
        {"a list for a header", raw_safetensors("[]", 0), {"'{'"}},
        {"a tensor that is a list", raw_safetensors("{\"a\":[]}", 0), {"'a'", "object"}},
        {"not UTF-8", raw_safetensors("{\"\xff\":{}}", 0), {"not valid JSON"}},
        {"a key twice",
         raw_safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],)"
                         R"("data_offsets":[0,1]}})",
                         1),
         {"'a' appears twice"}},
        {"text behind the object", raw_safetensors("{}x", 0), {"not valid JSON"}},
        {"a zero byte behind the object", raw_safetensors(std::string("{}\0", 3), 0), {"zero byte"}},
        {"metadata that is a list", raw_safetensors(R"({"__metadata__":[]})", 0), {"__metadata__"}},
        {"metadata of numbers", raw_safetensors(R"({"__metadata__":{"a":1}})", 0), {"__metadata__"}},
        {"nested 300 deep", raw_safetensors("{\"a\":" + std::string(300, '[') + std::string(300, ']') + "}", 0), {"deep"}},
        {"a name with a line break", raw_safetensors(R"({"x\ny":{}})", 0), {"x\\x0ay", "missing"}},
        {"an empty file", "", {"0 bytes"}},
        {"7 bytes", std::string(7, '\0'), {"7 bytes"}},
        {"8 bytes", std::string(8, '\0'), {"'{'"}},
    };
}

TEST(Safetensors, MalformedFilesAreRefusedWithFileTensorAndRule) {
    const testing::TemporaryFolder folder;
    for (const Malformed& c : malformed_files()) {
        std::vector<std::string> fragments = c.fragments;
        const std::string path = folder.write("bad.safetensors", c.content);
        fragments.push_back(path);
        EXPECT_TRUE(refuses([&] { const SafetensorsFile file(path); }, fragments)) << c.what;
    }
}

TEST(Safetensors, AFileCutAtAnyByteIsRefused) {
    const testing::TemporaryFolder folder;
    const std::string whole = raw_safetensors(two_tensors("[0,4]", "[4,8]"), 8);
    for (std::size_t length = 0; length < whole.size(); ++length) {
        const std::string path = folder.write("cut.safetensors", whole.substr(0, length));
        EXPECT_TRUE(refuses([&] { const SafetensorsFile file(path); }, {path})) << length;
    }
    EXPECT_EQ(SafetensorsFile(folder.write("cut.safetensors", whole)).entries().size(), 2U);
}

TEST(Safetensors, OddButValidFilesLoad) {
    const testing::TemporaryFolder folder;
    const std::string header =
        R"({"__metadata__":{"format":"pt"},"last":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},)"
        R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"none":{"dtype":"F32","shape":[5,0,7],"data_offsets":[4,4]},)"
        R"("end":{"dtype":"I64","shape":[0],"data_offsets":[7,7]},"six":{"dtype":"U8","shape":[1,1,1,1,1,2],"data_offsets":[7,9]}}      )";
    const SafetensorsFile file(folder.write("odd.safetensors", raw_safetensors(header, 9)));
    EXPECT_EQ(file.metadata().at("format"), "pt");
    ASSERT_EQ(file.entries().size(), 5U);
    EXPECT_EQ(file.find("scalar")->elements(), 1);
    EXPECT_EQ(file.find("scalar")->bytes, 4U);
    EXPECT_EQ(file.find("none")->elements(), 0);
    EXPECT_EQ(file.find("none")->shape, (std::vector<std::int64_t>{5, 0, 7}));
    EXPECT_EQ(file.find("last")->data - file.find("scalar")->data, 4);
    EXPECT_EQ(file.find("six")->shape.size(), 6U);
    EXPECT_EQ(file.find("absent"), nullptr);
    EXPECT_TRUE(SafetensorsFile(folder.write("empty.safetensors", raw_safetensors("{}", 0))).entries().empty());
}

// Time grows with the header, not with its square.
TEST(Safetensors, ManyNames) {
    constexpr int kNames = 100000;
    const auto header = [](bool same_bytes) {
        std::string text = "{";
        for (int i = 0; i < kNames; ++i) {
            const int begin = same_bytes ? 0 : 16 * i;
            text += fmt::format("{}\"tensor.{}\":{{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[{},{}]}}", i ? "," : "", i, begin,
                                begin + 16);
        }
        return text + "}";
    };
    const testing::TemporaryFolder folder;
    const std::string bad = folder.write("same.safetensors", raw_safetensors(header(true), 16));
    const std::string good = folder.write("many.safetensors", raw_safetensors(header(false), std::size_t{16} * kNames));
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(refuses([&] { const SafetensorsFile file(bad); }, {"overlaps"}));
    EXPECT_EQ(SafetensorsFile(good).entries().size(), static_cast<std::size_t>(kNames));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(Safetensors, ConvertsToF32FromUnalignedData) {
    const testing::TemporaryFolder folder;
    const std::string header =
        R"({"pad":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"f":{"dtype":"F32","shape":[3],"data_offsets":[1,13]},)"
        R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[13,19]},"h":{"dtype":"F16","shape":[4],"data_offsets":[19,27]}})";
    std::string content = raw_safetensors(header, 0) + "\1";
    const std::vector<float> floats = {1.5F, -0.0F, INFINITY};
    content.append(reinterpret_cast<const char*>(floats.data()), 12);
    const std::vector<std::uint16_t> brains = {0x3fc0, 0xc000, 0x7fc0};  // 1.5, -2, NaN
    content.append(reinterpret_cast<const char*>(brains.data()), 6);
    const std::vector<std::uint16_t> halves = {0x3e00, 0xc000, 0x0001, 0x7c00};  // 1.5, -2, the smallest subnormal, infinity
    content.append(reinterpret_cast<const char*>(halves.data()), 8);
    const SafetensorsFile file(folder.write("u.safetensors", content));

    const HostBuffer three = testing::poisoned_f32({3});
    copy_entry_to_f32(*file.find("f"), file.path(), three);
    EXPECT_EQ(three.tensor().f32()[0], 1.5F);
    EXPECT_TRUE(std::signbit(three.tensor().f32()[1]));
    EXPECT_EQ(three.tensor().f32()[2], INFINITY);
    copy_entry_to_f32(*file.find("b"), file.path(), three);
    EXPECT_EQ(three.tensor().f32()[1], -2.0F);
    EXPECT_TRUE(std::isnan(three.tensor().f32()[2]));
    const HostBuffer four = testing::poisoned_f32({4});
    copy_entry_to_f32(*file.find("h"), file.path(), four);
    EXPECT_EQ(four.tensor().f32()[0], 1.5F);
    EXPECT_EQ(four.tensor().f32()[2], 0x1p-24F);
    EXPECT_EQ(four.tensor().f32()[3], INFINITY);
    EXPECT_TRUE(refuses([&] { copy_entry_to_f32(*file.find("pad"), file.path(), testing::poisoned_f32({1})); }, {"'pad'", "U8"}));
}

}  // namespace
}  // namespace dflash
