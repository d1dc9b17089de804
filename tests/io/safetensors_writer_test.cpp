// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "io/safetensors.h"
#include "support/data.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace dflash {
namespace {

using testing::throws;

TEST(SafetensorsWriter, WhatIsWrittenReadsBack) {
    const testing::TemporaryFolder folder;
    const HostBuffer values = testing::random_f32({129, 257}, 1);  // more than one conversion block, and odd
    const std::vector<std::uint8_t> mask = {1, 0, 1};
    const std::int32_t scalar = -5;
    SafetensorsWriter writer(
        folder.file("out.safetensors"),
        {{"mask", "U8", {3}}, {"half \"x\"", "BF16", {129, 257}}, {"full", "F32", {129, 257}}, {"one", "I32", {}}, {"none", "F32", {0, 4}}},
        {{"format", "pt"}, {"note", "ä"}});
    writer.write("full", values);  // not in declared order
    writer.write("mask", mask.data(), mask.size());
    writer.write("half \"x\"", values);
    writer.write("one", &scalar, sizeof(scalar));
    writer.write("none", nullptr, 0);
    EXPECT_EQ(folder.num_files(), 1U);  // under a temporary name
    writer.finish();
    EXPECT_EQ(folder.num_files(), 1U);

    const SafetensorsFile file(folder.file("out.safetensors"));
    EXPECT_EQ(file.metadata().at("note"), "ä");
    ASSERT_EQ(file.entries().size(), 5U);
    EXPECT_EQ(std::memcmp(file.find("full")->data, values.tensor().data, values.tensor().bytes()), 0);
    EXPECT_EQ(std::memcmp(file.find("mask")->data, mask.data(), mask.size()), 0);
    EXPECT_EQ(std::memcmp(file.find("one")->data, &scalar, sizeof(scalar)), 0);
    const HostBuffer read = testing::poisoned_f32({129, 257});
    copy_entry_to_f32(*file.find("half \"x\""), file.path(), read);
    for (std::int64_t i = 0; i < read.tensor().elements(); ++i) {
        ASSERT_EQ(read.tensor().f32()[i], bf16_to_float(float_to_bf16(values.tensor().f32()[i]))) << i;
    }
    for (const auto& [name, entry] : file.entries()) {  // pages are aligned, so this is the offset in the file
        const std::size_t width = entry.elements() == 0 ? 1 : entry.bytes / static_cast<std::size_t>(entry.elements());
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(entry.data) % width, 0U) << name;
    }
}

TEST(SafetensorsWriter, ATensorMayComeInParts) {
    const testing::TemporaryFolder folder;
    const HostBuffer values = testing::random_f32({300}, 2);
    SafetensorsWriter writer(folder.file("a.safetensors"), {{"whole", "F32", {300}}, {"half", "BF16", {300}}});
    for (const auto& [begin, count] : {std::pair{0, 1}, {1, 0}, {1, 250}, {251, 49}}) {
        writer.write("half", values.tensor().slice_rows(begin, count));
        writer.write("whole", values.tensor().slice_rows(begin, count));
    }
    writer.finish();
    const SafetensorsFile file(folder.file("a.safetensors"));
    EXPECT_EQ(std::memcmp(file.find("whole")->data, values.tensor().data, values.tensor().bytes()), 0);
    for (std::int64_t i = 0; i < 300; ++i) {
        std::uint16_t stored = 0;
        std::memcpy(&stored, file.find("half")->data + 2 * i, 2);
        ASSERT_EQ(stored, float_to_bf16(values.tensor().f32()[i])) << i;
    }
}

TEST(SafetensorsWriter, EmptyFiles) {
    const testing::TemporaryFolder folder;
    SafetensorsWriter(folder.file("a.safetensors"), {}).finish();
    EXPECT_TRUE(SafetensorsFile(folder.file("a.safetensors")).entries().empty());
    SafetensorsWriter(folder.file("b.safetensors"), {}, {{"k", "v"}}).finish();
    EXPECT_EQ(SafetensorsFile(folder.file("b.safetensors")).metadata().at("k"), "v");
}

TEST(SafetensorsWriter, AnUnfinishedFileNeverAppears) {
    const testing::TemporaryFolder folder;
    { const SafetensorsWriter writer(folder.file("a.safetensors"), {{"x", "F32", {2}}}); }
    EXPECT_EQ(folder.num_files(), 0U);
}

TEST(SafetensorsWriter, MisuseIsRefused) {
    const testing::TemporaryFolder folder;
    const std::string path = folder.file("a.safetensors");
    const HostBuffer two = testing::random_f32({2}, 1);
    const auto kFailed = ErrorKind::kFailed;
    EXPECT_TRUE(throws(kFailed, [&] { const SafetensorsWriter w(path, {{"x", "F7", {2}}}); }, {"'x'", "F7"}));
    EXPECT_TRUE(throws(kFailed, [&] { const SafetensorsWriter w(path, {{"x", "F32", {2}}, {"x", "F32", {2}}}); }, {"declared twice"}));
    SafetensorsWriter writer(path, {{"x", "F32", {2}}, {"n", "I32", {2}}});
    EXPECT_TRUE(throws(kFailed, [&] { writer.write("y", two); }, {"'y'", "not declared"}));
    EXPECT_TRUE(throws(kFailed, [&] { writer.write("x", testing::random_f32({3}, 1)); }, {"'x'", "8 bytes", "12"}));
    EXPECT_TRUE(throws(kFailed, [&] { writer.write("n", two); }, {"'n'", "I32", "F32"}));
    writer.write("x", two);
    EXPECT_TRUE(throws(kFailed, [&] { writer.write("x", two); }, {"'x'", "8 bytes", "16"}));
    EXPECT_TRUE(throws(kFailed, [&] { writer.finish(); }, {"'n'", "8 bytes", "0 were written"}));
    EXPECT_TRUE(throws(kFailed, [&] { const SafetensorsWriter w(folder.file("absent/a"), {}); }, {"absent/a", "No such file"}));
}

}  // namespace
}  // namespace dflash
