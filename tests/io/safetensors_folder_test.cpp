// SPDX-License-Identifier: MIT
// Checkpoint folders: the index is followed, and faults between index and shards are named.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "io/raw_safetensors.h"
#include "io/safetensors.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace dflash {
namespace {

using testing::refuses;

constexpr const char* kIndex = "model.safetensors.index.json";

std::string shard(const std::string& name) {
    return testing::raw_safetensors("{\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2);
}

// Tensors x and y in two shards with names that no rule would guess.
void write_two_shards(const testing::TemporaryFolder& folder, const std::string& weight_map) {
    folder.write("first.bin.safetensors", shard("x"));
    folder.write("model.safetensors-00001-of-00001.safetensors", shard("y"));
    folder.write(kIndex, "{\"metadata\":{\"total_size\":4},\"weight_map\":" + weight_map + "}");
}
constexpr const char* kRightMap = R"({"x":"first.bin.safetensors","y":"model.safetensors-00001-of-00001.safetensors"})";

TEST(SafetensorsFolder, FollowsTheIndex) {
    const testing::TemporaryFolder folder;
    write_two_shards(folder, kRightMap);
    const SafetensorsFolder checkpoint(folder.path());
    EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"x", "y"}));
    ASSERT_NE(checkpoint.find("y"), nullptr);
    EXPECT_EQ(checkpoint.file_of(*checkpoint.find("y")).path(), folder.file("model.safetensors-00001-of-00001.safetensors"));
    EXPECT_EQ(checkpoint.find("z"), nullptr);
}

TEST(SafetensorsFolder, WithoutAnIndex) {
    const testing::TemporaryFolder folder;
    EXPECT_TRUE(refuses([&] { const SafetensorsFolder c(folder.path()); }, {folder.path(), "no *.safetensors"}));
    EXPECT_TRUE(refuses([&] { const SafetensorsFolder c(folder.file("absent")); }, {"absent", "not a folder"}));
    folder.write("weights.safetensors", shard("x"));
    EXPECT_NE(SafetensorsFolder(folder.path()).find("x"), nullptr);
    folder.write("others.safetensors", shard("y"));
    EXPECT_TRUE(refuses([&] { const SafetensorsFolder c(folder.path()); }, {"others.safetensors, weights.safetensors", "index"}));
    folder.write("model.safetensors", shard("z"));
    EXPECT_NE(SafetensorsFolder(folder.path()).find("z"), nullptr);
}

TEST(SafetensorsFolder, MissingShardsAreListedWithTheirTensors) {
    const testing::TemporaryFolder folder;
    write_two_shards(folder, kRightMap);
    std::filesystem::rename(folder.file("first.bin.safetensors"), folder.file("first.bin.safetensors.part"));
    EXPECT_TRUE(refuses([&] { const SafetensorsFolder c(folder.path()); }, {kIndex, "first.bin.safetensors", "1 tensors: x"}));
}

TEST(SafetensorsFolder, ATensorThatItsShardLacksIsNamedWithBothFiles) {
    const testing::TemporaryFolder folder;
    write_two_shards(folder, R"({"x":"model.safetensors-00001-of-00001.safetensors","y":"model.safetensors-00001-of-00001.safetensors",)"
                             R"("phantom":"first.bin.safetensors"})");
    const SafetensorsFolder checkpoint(folder.path());
    EXPECT_EQ(checkpoint.missing().size(), 2U);
    EXPECT_NE(checkpoint.find("y"), nullptr);
    EXPECT_TRUE(refuses([&] { checkpoint.find("x"); }, {"'x'", "model.safetensors-00001-of-00001.safetensors", "first.bin.safetensors"}));
    EXPECT_TRUE(refuses([&] { checkpoint.find("phantom"); }, {"'phantom'", "first.bin.safetensors"}));
}

TEST(SafetensorsFolder, MalformedIndexesAreRefused) {
    const testing::TemporaryFolder folder;
    for (const char* map :
         {"[]", "3", R"({"x":3})", R"({"x":""})", R"({"x":"../first.bin.safetensors"})", R"({"x":"/etc/passwd"})", R"({"x":".."})"}) {
        write_two_shards(folder, map);
        EXPECT_TRUE(refuses([&] { const SafetensorsFolder c(folder.path()); }, {kIndex})) << map;
    }
    folder.write(kIndex, "[]");
    EXPECT_TRUE(refuses([&] { const SafetensorsFolder c(folder.path()); }, {kIndex, "weight_map"}));
    folder.write(kIndex, "{\"weight_map\":");
    EXPECT_TRUE(refuses([&] { const SafetensorsFolder c(folder.path()); }, {kIndex, "not valid JSON"}));
}

}  // namespace
}  // namespace dflash
