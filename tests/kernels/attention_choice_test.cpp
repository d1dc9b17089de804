// SPDX-License-Identifier: MIT
// Which attention kernel a shape runs, and what a choice depends on.
#include "kernels/cuda/attention_choice.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/error.h"
#include "kernels/anchor_attention.h"
#include "support/errors.h"

namespace dflash::cuda {
namespace {

TEST(AttentionChoice, RefusesWhatHasNoFusedKernelAndListsWhatHas) {
    EXPECT_EQ(choose_attention_kernel(90, 32, 8, 128, 16).backend, AttentionBackend::kHopper);
    EXPECT_EQ(choose_attention_kernel(120, 32, 8, 128, 16).backend, AttentionBackend::kPortable);
    EXPECT_EQ(choose_attention_kernel(80, 5, 1, 64, 64).backend, AttentionBackend::kPortable);
    const std::vector<std::string> list = {"1 to 8 heads a kv head", "multiples of 8 up to 128", "blocks of 1 to 64"};
    EXPECT_TRUE(testing::refuses([] { choose_attention_kernel(90, 32, 8, 256, 16); }, list));
    EXPECT_TRUE(testing::refuses([] { choose_attention_kernel(90, 32, 2, 128, 16); }, list));
    EXPECT_TRUE(testing::refuses([] { choose_attention_kernel(90, 32, 0, 128, 16); }, list));
    EXPECT_TRUE(testing::refuses([] { choose_attention_kernel(90, 32, 8, 128, 65); }, list));
    EXPECT_TRUE(testing::refuses([] { choose_attention_kernel(75, 32, 8, 128, 16); }, {"7.5", "8.0 or later"}));
}

TEST(AttentionChoice, TheDefaultIsTheFirstOfTheKernelsThatADeviceRuns) {
    for (const int capability : {80, 89, 90, 100, 120}) {
        for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
            const std::vector<AttentionKernel> kernels = attention_kernels(capability, pass);
            ASSERT_FALSE(kernels.empty());
            EXPECT_EQ(kernels.front(), choose_attention_kernel(capability, 32, 8, 128, 16));
            std::set<std::string> ids;
            for (const AttentionKernel& kernel : kernels) {
                EXPECT_TRUE(ids.insert(kernel.id).second) << kernel.id;
                EXPECT_TRUE(kernel.backend == AttentionBackend::kPortable || capability == 90) << kernel.id;
            }
        }
    }
    EXPECT_TRUE(attention_kernels(75, AttentionPass::kForward).empty());
}

TEST(AttentionChoice, EveryFieldOfAKeyTellsShapesApart) {
    const AttentionKey base{AttentionPass::kForward, 32, 8, 128, 16, 0, false, 8192, 512};
    std::vector<AttentionKey> keys(9, base);
    keys[0].pass = AttentionPass::kBackward;
    keys[1].heads = 16;
    keys[2].kv_heads = 4;
    keys[3].head_dim = 64;
    keys[4].block_size = 8;
    keys[5].window = 2048;
    keys[6].causal_block = true;
    keys[7].context_bucket = 4096;
    keys[8].anchor_bucket = 256;
    keys.push_back(base);
    std::set<std::string> texts;
    AttentionChoices choices;
    const AttentionKernel kernels[] = {attention_kernels(90, AttentionPass::kForward).front(),
                                       attention_kernels(90, AttentionPass::kForward).back()};
    for (std::size_t i = 0; i < keys.size(); ++i) {
        EXPECT_EQ(choices.find(keys[i]), nullptr);
        choices.set(keys[i], kernels[i % 2]);
        texts.insert(keys[i].text());
    }
    EXPECT_EQ(texts.size(), keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(*choices.find(keys[i]), kernels[i % 2]) << keys[i].text();
    choices.set(base, kernels[0]);
    EXPECT_EQ(*choices.find(base), kernels[0]);
    EXPECT_EQ(choices.all().size(), keys.size());
}

TEST(AttentionChoice, LengthsCountByPowersOfTwo) {
    const std::pair<std::int64_t, std::int64_t> kCases[] = {{0, 1}, {1, 1}, {2, 2}, {3, 4}, {4, 4}, {4097, 8192}, {8192, 8192}};
    for (const auto& [length, bucket] : kCases) EXPECT_EQ(length_bucket(length), bucket) << length;
}

TEST(AttentionChoice, TheCpuHasOneKernelForEveryShape) {
    EXPECT_EQ(anchor_attention_kernel({}, 32, 8, 128, 16), anchor_attention_kernel({}, 7, 7, 24, 3));
    EXPECT_NE(anchor_attention_kernel({}, 32, 8, 128, 16).find("fused"), std::string::npos);
}

}  // namespace
}  // namespace dflash::cuda
