// SPDX-License-Identifier: MIT
#include "generate/acceptance.h"

#include <gtest/gtest.h>

namespace dflash {
namespace {

GenerateResult result(std::vector<std::int32_t> ids, std::int64_t steps, std::int64_t verified) {
    GenerateResult r;
    r.output_ids = std::move(ids);
    r.verify_steps = steps;
    r.verified_tokens = verified;
    r.accepted_by_slot = {0, verified - steps};
    r.proposed_by_slot = {0, steps};
    r.decode_ms = 10;
    return r;
}

TEST(AcceptanceReport, PoolsStepsAndKeepsThePromptsMeanApart) {
    AcceptanceReport report;
    report.add(result({1, 2, 3, 4}, 1, 3));        // 3 a step
    report.add(result({1, 2, 3, 4, 5, 6}, 4, 5));  // 1.25 a step
    report.add(result({1}, 0, 0));                 // the prompt's own token ended it
    EXPECT_EQ(report.prompts, 3);
    EXPECT_EQ(report.new_tokens, 11);
    EXPECT_DOUBLE_EQ(report.acceptance_length(), 8.0 / 5.0);
    EXPECT_DOUBLE_EQ(report.prompt_mean(), (3 + 1.25) / 2);
    EXPECT_EQ(report.accepted_by_slot, (std::vector<std::int64_t>{0, 3}));
    EXPECT_EQ(report.proposed_by_slot, (std::vector<std::int64_t>{0, 5}));
    EXPECT_DOUBLE_EQ(report.tokens_per_second(), 8 / 0.030);
}

TEST(AcceptanceReport, ComparesWithPlainDecoding) {
    AcceptanceReport report;
    const GenerateResult drafted = result({1, 2, 3, 4}, 1, 3);
    report.add(drafted);
    report.compare(drafted, result({1, 2, 3, 4}, 3, 3));
    EXPECT_EQ(report.differing_tokens, 0);
    report.compare(drafted, result({1, 9, 3}, 2, 2));
    EXPECT_EQ(report.differing_tokens, 2);
    EXPECT_EQ(report.differing_prompts, 1);
    EXPECT_DOUBLE_EQ(report.plain_tokens_per_second(), 5 / 0.020);
    EXPECT_DOUBLE_EQ(report.speed_up(), (3 / 0.010) / (5 / 0.020));
}

TEST(AcceptanceReport, IsZeroWhereNothingWasMeasured) {
    const AcceptanceReport report;
    EXPECT_EQ(report.acceptance_length(), 0);
    EXPECT_EQ(report.prompt_mean(), 0);
    EXPECT_EQ(report.tokens_per_second(), 0);
    EXPECT_EQ(report.speed_up(), 0);
}

TEST(CountDiffering, CountsTheSurplusToo) {
    EXPECT_EQ(count_differing({}, {}), 0);
    EXPECT_EQ(count_differing({1, 2}, {1, 2}), 0);
    EXPECT_EQ(count_differing({1, 2, 3}, {1}), 2);
    EXPECT_EQ(count_differing({1, 2}, {3, 2, 1}), 2);
}

}  // namespace
}  // namespace dflash
