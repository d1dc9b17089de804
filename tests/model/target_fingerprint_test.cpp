// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "model/target_weights.h"
#include "support/toy_checkpoint.h"

namespace dflash {
namespace {

using testing::ToyCheckpoint;

std::string fingerprint(const ToyCheckpoint& toy, std::size_t shards = 1) {
    const testing::TemporaryFolder folder;
    toy.write(folder, shards);
    return target_fingerprint(folder.path());
}

TEST(TargetFingerprint, IsTheSameForTheSameContent) {
    const std::string first = fingerprint(testing::toy_hybrid());
    EXPECT_EQ(first.size(), 64U);
    EXPECT_EQ(fingerprint(testing::toy_hybrid()), first);
    EXPECT_EQ(fingerprint(testing::toy_hybrid(), 3), first);
}

TEST(TargetFingerprint, DiffersForOtherContent) {
    const std::string first = fingerprint(testing::toy_qwen3());
    const auto differs = [&](const std::function<void(ToyCheckpoint&)>& change) {
        ToyCheckpoint toy = testing::toy_qwen3();
        change(toy);
        return fingerprint(toy) != first;
    };
    EXPECT_TRUE(differs([](ToyCheckpoint& t) { t.config["rope_theta"] = 1e5; }));
    EXPECT_TRUE(differs([](ToyCheckpoint& t) { t.tensors["model.norm.weight"].values.back() += 1; }));
    EXPECT_TRUE(differs([](ToyCheckpoint& t) { t.tensors["model.embed_tokens.weight"].values.back() += 1; }));
    EXPECT_TRUE(differs([](ToyCheckpoint& t) { t.tensors["model.embed_tokens.weight"].values.front() += 1; }));
    EXPECT_TRUE(differs([](ToyCheckpoint& t) { t.tensors["lm_head.weight"].dtype = "BF16"; }));
    EXPECT_TRUE(differs([](ToyCheckpoint& t) { t.tensors["extra"] = t.tensors["model.norm.weight"]; }));
}

}  // namespace
}  // namespace dflash
