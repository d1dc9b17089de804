// SPDX-License-Identifier: MIT
// Data that others published, read in place where it is there: $DFLASH_PUBLIC_FIXTURES, else ../shared/fixtures/public beside the sources.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace dflash::testing {

inline std::string public_fixtures() {
    const char* set = std::getenv("DFLASH_PUBLIC_FIXTURES");
    return set != nullptr ? set : std::string(DFLASH_FIXTURES) + "/../../shared/fixtures/public";
}

// To be called first in a test that needs them.
#define DFLASH_NEEDS_PUBLIC_FIXTURES()                                  \
    if (!std::filesystem::exists(::dflash::testing::public_fixtures())) \
    GTEST_SKIP() << "no published data at " << ::dflash::testing::public_fixtures() << "; set DFLASH_PUBLIC_FIXTURES"

}  // namespace dflash::testing
