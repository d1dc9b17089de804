// SPDX-License-Identifier: MIT
#include "kernels/log_sum_exp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/close.h"
#include "support/data.h"
#include "support/device_case.h"

namespace dflash {
namespace {

using namespace dflash::testing;  // NOLINT: test helpers

class LogSumExp : public DeviceTest {
protected:
    void expect_sums(const HostBuffer& x) {
        const HostBuffer y = poisoned_f32({x.tensor().rows()});
        log_sum_exp_rows(context(), in(x, kAsIs), out(y, kAsIs));
        finish();
        std::vector<double> expected;
        for (std::int64_t row = 0; row < x.tensor().rows(); ++row) {
            long double sum = 0;
            for (std::int64_t i = 0; i < x.tensor().row_elements(); ++i)
                sum += std::exp(static_cast<long double>(x.tensor().f32()[row * x.tensor().row_elements() + i]) - 100);
            expected.push_back(static_cast<double>(100 + std::log(sum)));
        }
        EXPECT_TRUE(close(y, expected, kOpF32)) << x.tensor().shape.to_string();
        forget();
    }
};

TEST_P(LogSumExp, small_RowsOfAnyWidth) {
    for (const std::int64_t columns : {1, 2, 31, 512, 513, 4099}) {
        for (const std::int64_t rows : {1, 3, 17}) expect_sums(random_f32({rows, columns}, static_cast<std::uint64_t>(columns), 5));
    }
}

TEST_P(LogSumExp, LargeValuesDoNotOverflow) { expect_sums(random_f32({3, 1000}, 7, 20, 110)); }

TEST_P(LogSumExp, small_NaNStaysInItsRow) {
    const HostBuffer x = random_f32({3, 700}, 5);
    x.tensor().f32()[700 + 650] = std::numeric_limits<float>::quiet_NaN();
    const HostBuffer y = poisoned_f32({3});
    log_sum_exp_rows(context(), in(x, kAsIs), out(y, kAsIs));
    finish();
    EXPECT_TRUE(std::isfinite(y.tensor().f32()[0]));
    EXPECT_TRUE(std::isnan(y.tensor().f32()[1]));
    EXPECT_TRUE(std::isfinite(y.tensor().f32()[2]));
}

DFLASH_ON_EACH_DEVICE(LogSumExp);

}  // namespace
}  // namespace dflash
