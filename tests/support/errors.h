// SPDX-License-Identifier: MIT
// Expecting an Error of a kind whose one-line message names what it should.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace dflash::testing {

template <typename Call>
::testing::AssertionResult throws(ErrorKind kind, const Call& call, const std::vector<std::string>& fragments) {
    try {
        call();
    } catch (const Error& error) {
        const std::string message = error.what();
        if (error.kind() != kind) return ::testing::AssertionFailure() << "another kind of error: " << message;
        if (message.find('\n') != std::string::npos) return ::testing::AssertionFailure() << "more than one line: " << message;
        for (const std::string& fragment : fragments) {
            if (message.find(fragment) == std::string::npos) {
                return ::testing::AssertionFailure() << "'" << fragment << "' is not in: " << message;
            }
        }
        return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure() << "no error was thrown";
}

template <typename Call>
::testing::AssertionResult refuses(const Call& call, const std::vector<std::string>& fragments) {
    return throws(ErrorKind::kBadInput, call, fragments);
}

}  // namespace dflash::testing
