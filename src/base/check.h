// SPDX-License-Identifier: MIT
// DFLASH_CHECK is always on and guards contracts between stages (shapes, dtypes, sizes); it throws Error(kFailed).
// DFLASH_ASSERT is for our own bugs in hot code: on in dev and sanitizer builds, off in release.
// What a user can get wrong is reported with throw_bad_input (error.h) instead.
#pragma once

#include "base/error.h"

#define DFLASH_CHECK(condition, ...)                                                                              \
    do {                                                                                                          \
        if (!(condition)) {                                                                                       \
            ::dflash::throw_failed("{} [{} at {}:{}]", fmt::format(__VA_ARGS__), #condition, __FILE__, __LINE__); \
        }                                                                                                         \
    } while (false)

#ifdef DFLASH_ENABLE_ASSERTS
#define DFLASH_ASSERT(condition, ...) DFLASH_CHECK(condition, __VA_ARGS__)
#else
#define DFLASH_ASSERT(condition, ...) \
    do {                              \
    } while (false)
#endif
