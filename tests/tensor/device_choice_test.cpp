// SPDX-License-Identifier: MIT
#include "tensor/device_choice.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tensor/cuda_runtime.h"

namespace dflash {
namespace {

TEST(DeviceChoice, AutoTakesAGpuWhereThereIsOne) {
    const bool gpu = cuda::is_built() && cuda::device_count() > 0;
    EXPECT_EQ(choose_device("auto").type, gpu ? DeviceType::kCuda : DeviceType::kCpu);
    EXPECT_EQ(choose_device("cpu").type, DeviceType::kCpu);
}

TEST(DeviceChoice, AGpuThatIsNotThereIsRefusedWithTheReason) {
    const bool gpu = cuda::is_built() && cuda::device_count() > 0;
    try {
        EXPECT_EQ(choose_device("cuda").type, DeviceType::kCuda);
        EXPECT_TRUE(gpu);
    } catch (const Error& error) {
        EXPECT_FALSE(gpu) << error.what();
        EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
        EXPECT_NE(std::string(error.what()).find(cuda::is_built() ? "no GPU is visible" : "built without CUDA"), std::string::npos);
    }
    EXPECT_THROW(choose_device("gpu"), Error);
    EXPECT_THROW(choose_device(""), Error);
}

// A plan is made for a device that need not be there.
TEST(DeviceChoice, ANameNeedsNoDevice) {
    EXPECT_EQ(device_of_name("cuda").type, DeviceType::kCuda);
    EXPECT_EQ(device_of_name("cpu").type, DeviceType::kCpu);
    EXPECT_EQ(device_of_name("auto").type, DeviceType::kCpu);
    EXPECT_STREQ(device_type_name(device_of_name("cuda")), "cuda");
}

}  // namespace
}  // namespace dflash
