// SPDX-License-Identifier: MIT
#include "train/run_settings.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "support/errors.h"

namespace dflash {
namespace {

using testing::refuses;

// Whether a change of the defaults is refused with a message that names `what`.
::testing::AssertionResult refused(const std::function<void(RunSettings&)>& change, const std::string& what) {
    RunSettings settings;
    change(settings);
    return refuses([&] { check_settings(settings); }, {what});
}

TEST(RunSettings, JsonRoundTripKeepsEveryValue) {
    RunSettings settings;
    settings.target = "t";
    settings.lr = 0.1 + 0.2;  // needs all digits
    settings.target_layer_ids = {1, 4, 5};
    settings.steps = 1234567890123;
    const nlohmann::json once = settings_to_json(settings);
    EXPECT_EQ(settings_to_json(settings_from_json(nlohmann::json::parse(once.dump()), "x")), once);
    EXPECT_EQ(once.at("token-budget"), 8192);
    EXPECT_EQ(once.at("max-anchors"), 512);
    EXPECT_EQ(once.at("weighting"), "dpace");
}

TEST(RunSettings, UnknownAndMistypedKeysAreNamed) {
    EXPECT_TRUE(refuses([] { settings_from_json({{"token_budget", 1}}, "c.json"); }, {"'token_budget'"}));
    EXPECT_TRUE(refuses([] { settings_from_json({{"steps", "many"}}, "c.json"); }, {"'steps'"}));
}

TEST(RunSettings, BadValuesAreRefusedByName) {
    EXPECT_TRUE(refused([](auto& s) { s.block_size = 1; }, "--block-size"));
    EXPECT_TRUE(refused([](auto& s) { s.block_size = 65; }, "--block-size"));
    EXPECT_TRUE(refused([](auto& s) { s.accumulate = 0; }, "--accumulate"));
    EXPECT_TRUE(refused([](auto& s) { s.lr = std::nan(""); }, "--lr"));
    EXPECT_TRUE(refused([](auto& s) { s.warmup_ratio = 1.5; }, "--warmup-ratio"));
    EXPECT_TRUE(refused([](auto& s) { s.loss = "mse"; }, "--loss"));
    EXPECT_TRUE(refused([](auto& s) { s.memory = "much"; }, "--memory"));
    EXPECT_TRUE(refused([](auto& s) { s.data = "a", s.features = "b"; }, "--features"));
    EXPECT_TRUE(refused([](auto& s) { s.given = {"decay-gamma"}; }, "--decay-gamma"));
    EXPECT_TRUE(refused([](auto& s) { s.max_length = 9000; }, "--max-length"));
}

TEST(RunSettings, WhatThisBuildLacksIsRefusedByName) {
    EXPECT_TRUE(refused([](auto& s) { s.dp_pairs = 2; }, "--dp-pairs 2"));
    EXPECT_TRUE(refused([](auto& s) { s.placement = "split"; }, "--placement split"));
    EXPECT_TRUE(refused(
        [](auto& s) {
            s.device = "cpu";
            s.grad_dtype = "bf16";
        },
        "--grad-dtype bf16"));
}

TEST(RunSettings, ResumeKeepsTheCurveAndTakesFreeSettings) {
    RunSettings recorded;
    recorded.lr = 1e-3;
    recorded.threads = 2;
    RunSettings asked;
    asked.given = {"keep", "lr"};
    asked.keep = 9;
    asked.lr = 1e-3;
    const RunSettings merged = resume_settings(recorded, asked);
    EXPECT_EQ(merged.keep, 9);
    EXPECT_EQ(merged.lr, 1e-3);
    EXPECT_EQ(merged.threads, 2);
    EXPECT_TRUE(merged.resume);
    asked.lr = 2e-3;
    EXPECT_TRUE(refuses([&] { resume_settings(recorded, asked); }, {"--lr"}));
    asked = {};
    asked.given = {"threads"};
    asked.threads = 1;
    EXPECT_TRUE(refuses([&] { resume_settings(recorded, asked); }, {"--threads"}));
}

}  // namespace
}  // namespace dflash
