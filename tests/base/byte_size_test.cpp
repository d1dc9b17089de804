// SPDX-License-Identifier: MIT
#include "base/byte_size.h"

#include <gtest/gtest.h>

#include "base/host_memory.h"
#include "support/errors.h"

namespace dflash {
namespace {

TEST(ByteSize, DecimalAndBinaryUnits) {
    EXPECT_EQ(parse_bytes("96GiB", "--memory"), std::size_t{96} << 30);
    EXPECT_EQ(parse_bytes("80 GB", "--memory"), 80000000000U);
    EXPECT_EQ(parse_bytes("1.5mib", "--memory"), 1572864U);
    EXPECT_EQ(parse_bytes("4096", "--memory"), 4096U);
    EXPECT_EQ(parse_bytes("2kB", "--memory"), 2000U);
}

TEST(ByteSize, OtherTextIsRefusedWithTheFlag) {
    for (const char* text : {"", "GB", "many", "-3GB", "0", "5 parsec", "nan", "1e40GB", "12GBs"}) {
        EXPECT_TRUE(testing::refuses([&] { parse_bytes(text, "--memory"); }, {"--memory", text})) << text;
    }
}

TEST(ByteSize, FormatsWithAUnit) {
    EXPECT_EQ(format_bytes(17800000000), "17.80 GB");
    EXPECT_EQ(format_bytes(512000000), "512.0 MB");
    EXPECT_EQ(format_bytes(1500), "1.5 kB");
    EXPECT_EQ(format_bytes(96), "96 B");
}

TEST(HostMemory, ThisProcessIsResidentWithinTheMachine) {
    EXPECT_GT(resident_bytes(), 100000U);
    EXPECT_GE(resident_peak_bytes(), resident_bytes());
    EXPECT_GT(resident_file_bytes(), 0U);
    EXPECT_LT(resident_file_bytes(), resident_bytes());
    EXPECT_GT(host_memory_available_bytes(), 0U);
}

}  // namespace
}  // namespace dflash
