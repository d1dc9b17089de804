// SPDX-License-Identifier: MIT
#include "train/schedule.h"

#include <gtest/gtest.h>

namespace dflash {
namespace {

TEST(Schedule, RisesToThePeakAndFallsToZero) {
    const Schedule schedule = make_schedule(1.0, 0.25, 16);
    EXPECT_EQ(schedule.warmup_steps, 4);
    EXPECT_DOUBLE_EQ(schedule.learning_rate(1), 0.25);
    EXPECT_DOUBLE_EQ(schedule.learning_rate(4), 1.0);
    EXPECT_DOUBLE_EQ(schedule.learning_rate(5), 1.0);  // the cosine begins at its top
    EXPECT_DOUBLE_EQ(schedule.learning_rate(11), 0.5);
    EXPECT_GT(schedule.learning_rate(16), 0.0);
    EXPECT_DOUBLE_EQ(schedule.learning_rate(17), 0.0);
    for (std::int64_t step = 5; step < 16; ++step) EXPECT_GT(schedule.learning_rate(step), schedule.learning_rate(step + 1));
}

TEST(Schedule, EdgeRatios) {
    EXPECT_DOUBLE_EQ(make_schedule(2.0, 0.0, 10).learning_rate(1), 2.0);
    const Schedule all_warmup = make_schedule(2.0, 1.0, 4);
    EXPECT_DOUBLE_EQ(all_warmup.learning_rate(1), 0.5);
    EXPECT_DOUBLE_EQ(all_warmup.learning_rate(4), 2.0);
    EXPECT_DOUBLE_EQ(make_schedule(2.0, 0.04, 1).learning_rate(1), 2.0);  // one step is all warm-up
}

}  // namespace
}  // namespace dflash
