// SPDX-License-Identifier: MIT
// A cache that many programs share, some of which are killed: finished writers keep what they wrote, readers never fail on a bad file.
#include "io/tile_cache.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "io/atomic_file.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace dflash {
namespace {

const TileCache::Legal kAny = [](const std::string&) { return true; };
const std::string kKey = "build=0 device=none shape";
const std::string kValue = "portable-4x64";

std::string measured() { return kValue; }
std::string not_expected() {
    ADD_FAILURE() << "measured again";
    return {};
}

// Flags that parent and children see.
class SharedFlags {
public:
    explicit SharedFlags(std::size_t count) : count_(count) {
        memory_ = ::mmap(nullptr, count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    }
    ~SharedFlags() { ::munmap(memory_, count_); }
    SharedFlags(const SharedFlags&) = delete;
    SharedFlags& operator=(const SharedFlags&) = delete;
    std::atomic<unsigned char>& operator[](std::size_t i) const { return static_cast<std::atomic<unsigned char>*>(memory_)[i]; }

private:
    std::size_t count_;
    void* memory_;
};

constexpr int kProcesses = 8;
constexpr int kKeys = 50;  // of each
std::string key_of(int process, int key) { return "process " + std::to_string(process) + " key " + std::to_string(key); }
std::string value_of(int process, int key, int round) {
    return std::to_string(1000 * process + key) + " of round " + std::to_string(round);
}

// Eight processes write their keys while half of them are killed at some moment: whatever store() returned from is there afterwards, and
// nothing that was ever read had to be set aside.
TEST(TileCache, WhatFinishedWritersStoredSurvivesTheKilledOnes) {
    constexpr int kRounds = 100;
    const testing::TemporaryFolder folder;
    Philox rng(3, 3);
    for (int round = 0; round < kRounds; ++round) {
        const SharedFlags stored(kProcesses * kKeys);
        std::vector<pid_t> children;
        for (int process = 0; process < kProcesses; ++process) {
            const pid_t child = ::fork();
            if (child == 0) {
                TileCache cache(folder.path());
                for (int key = 0; key < kKeys; ++key) {
                    if (!cache.store(key_of(process, key), value_of(process, key, round))) ::_exit(1);
                    stored[static_cast<std::size_t>(process * kKeys + key)] = 1;
                    const int other = (process + 1) % kProcesses;  // which may have been killed before this key in every round
                    const auto found = cache.find(key_of(other, key), kAny);
                    if (found && !found->starts_with(std::to_string(1000 * other + key) + " of round ")) ::_exit(2);
                }
                ::_exit(0);
            }
            ASSERT_GT(child, 0);
            children.push_back(child);
        }
        for (int victim = 0; victim < kProcesses; victim += 2) {
            ::usleep(static_cast<useconds_t>(rng.next_below(8000)));
            ::kill(children[static_cast<std::size_t>(victim)], SIGKILL);
        }
        int finished = 0;
        for (const pid_t child : children) {
            int status = 0;
            ::waitpid(child, &status, 0);
            EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
            finished += WIFEXITED(status) ? 1 : 0;
        }
        EXPECT_GE(finished, kProcesses / 2);
        TileCache cache(folder.path());
        for (int process = 0; process < kProcesses; ++process) {
            for (int key = 0; key < kKeys; ++key) {
                if (stored[static_cast<std::size_t>(process * kKeys + key)] == 0) continue;
                EXPECT_EQ(cache.find(key_of(process, key), kAny), value_of(process, key, round)) << key_of(process, key);
            }
        }
        EXPECT_EQ(cache.state().set_aside, 0U);
    }
}

TEST(TileCache, AFileCutAnywhereIsSetAsideAndMeasuredAgain) {
    const testing::TemporaryFolder folder;
    const std::string path = TileCache(folder.path()).path_of(kKey);
    ASSERT_TRUE(TileCache(folder.path()).store(kKey, kValue));
    const std::string whole = read_file(path);
    for (std::size_t length = 0; length < whole.size(); ++length) {
        write_file_atomically(path, whole.substr(0, length));
        TileCache cache(folder.path());
        EXPECT_EQ(cache.find(kKey, kAny), std::nullopt) << length << " bytes";
        EXPECT_EQ(read_file(path + ".bad"), whole.substr(0, length));
        EXPECT_EQ(cache.find_or_measure(kKey, kAny, measured), kValue);
        EXPECT_EQ(read_file(path), whole) << length << " bytes";
    }
    EXPECT_EQ(TileCache(folder.path()).find(kKey, kAny), kValue);
}

TEST(TileCache, AnyChangedByteIsAMiss) {
    const testing::TemporaryFolder folder;
    TileCache cache(folder.path());
    ASSERT_TRUE(cache.store(kKey, kValue));
    const std::string path = cache.path_of(kKey), whole = read_file(path);
    for (std::size_t at = 0; at < whole.size(); ++at) {
        std::string changed = whole;
        changed[at] = static_cast<char>(changed[at] ^ 1);
        write_file_atomically(path, changed);
        EXPECT_EQ(cache.find(kKey, kAny), std::nullopt) << "byte " << at;
    }
    for (const std::string& other : {whole + "\n", whole + whole, std::string(100000, 'x'), std::string("{\"json\": 1}")}) {
        write_file_atomically(path, other);
        EXPECT_EQ(cache.find(kKey, kAny), std::nullopt) << other.size();
    }
    std::filesystem::create_directory(path);
    EXPECT_EQ(cache.find(kKey, kAny), std::nullopt);
}

TEST(TileCache, AnotherKeysFileAndAnIllegalValueAreMisses) {
    const testing::TemporaryFolder folder;
    TileCache cache(folder.path());
    ASSERT_TRUE(cache.store(kKey, kValue));
    const std::string other = "build=1 device=none shape";
    std::filesystem::copy_file(cache.path_of(kKey), cache.path_of(other));
    EXPECT_EQ(cache.find(other, kAny), std::nullopt);
    EXPECT_EQ(cache.find(kKey, kAny), kValue);

    const auto only_small = [](const std::string& value) { return value == "portable-4x32"; };
    EXPECT_EQ(cache.find(kKey, only_small), std::nullopt);
    EXPECT_TRUE(std::filesystem::exists(cache.path_of(kKey) + ".bad"));
    EXPECT_EQ(cache.find_or_measure(kKey, only_small, [] { return "portable-4x32"; }), "portable-4x32");
    EXPECT_EQ(TileCache(folder.path()).find(kKey, only_small), "portable-4x32");
}

// A bad file that a good one has replaced meanwhile: what is legal is never lost by setting aside.
TEST(TileCache, ReadersOfABadFileLoseNoGoodOne) {
    const testing::TemporaryFolder folder;
    const std::string path = TileCache(folder.path()).path_of(kKey);
    std::atomic<bool> stop{false};
    std::vector<std::thread> readers;
    for (int i = 0; i < 2; ++i) {
        readers.emplace_back([&] {
            while (!stop) {
                TileCache cache(folder.path());
                cache.find(kKey, kAny);
            }
        });
    }
    constexpr int kRounds = 100;
    for (int round = 0; round < kRounds; ++round) {
        write_file_atomically(path, "cut");
        TileCache cache(folder.path());
        ASSERT_TRUE(cache.store(kKey, kValue));
    }
    stop = true;
    for (std::thread& reader : readers) reader.join();
    EXPECT_EQ(TileCache(folder.path()).find(kKey, kAny), kValue);
}

TEST(TileCache, AFolderThatCannotBeWrittenIsNoError) {
    const testing::TemporaryFolder folder;
    ASSERT_TRUE(TileCache(folder.path()).store(kKey, kValue));
    const std::string broken = "broken";
    const std::string path = folder.write(std::filesystem::path(TileCache("").path_of(broken)).filename().string(), "cut");
    ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
    const uid_t user = ::geteuid();
    constexpr uid_t kNobody = 65534;
    ASSERT_EQ(::seteuid(user == 0 ? kNobody : user), 0);  // root may write everywhere
    TileCache cache(folder.path());
    const bool stored = cache.store("new", kValue);
    const bool writable = cache.state().writable;
    const auto old = cache.find(kKey, kAny);
    const auto bad = cache.find(broken, kAny);
    const std::string fresh = cache.find_or_measure("new", kAny, measured);
    const std::string again = cache.find_or_measure("new", kAny, not_expected);
    ASSERT_EQ(::seteuid(user), 0);
    ::chmod(folder.path().c_str(), 0755);
    EXPECT_FALSE(stored);
    EXPECT_FALSE(writable);
    EXPECT_EQ(old, kValue);
    EXPECT_EQ(bad, std::nullopt);
    EXPECT_EQ(fresh, kValue);
    EXPECT_EQ(again, kValue);
    EXPECT_EQ(read_file(path), "cut");
}

TEST(TileCache, NoFolderMeansNothingIsRemembered) {
    TileCache none(""), impossible("/proc/no/such");
    for (TileCache* cache : {&none, &impossible}) {
        EXPECT_FALSE(cache->store(kKey, kValue));
        EXPECT_EQ(cache->find(kKey, kAny), std::nullopt);
        EXPECT_EQ(cache->find_or_measure(kKey, kAny, measured), kValue);
        EXPECT_FALSE(cache->state().exists);
    }
    EXPECT_TRUE(testing::throws(ErrorKind::kFailed, [&] { none.store("a\nb", kValue); }, {"line break"}));
    EXPECT_TRUE(testing::throws(ErrorKind::kFailed, [&] { none.store(kKey, "a\nb"); }, {"line break"}));
}

TEST(TileCache, TwoHomesMayLeadToOneFolder) {
    const testing::TemporaryFolder folder;
    for (const char* home : {"one/.cache", "two"}) std::filesystem::create_directories(folder.file(home));
    std::filesystem::create_directory_symlink(folder.file("one/.cache"), folder.file("two/.cache"));
    ::unsetenv("DFLASH_CACHE_DIR");
    ::unsetenv("XDG_CACHE_HOME");
    const auto of_home = [&](const char* home) {
        ::setenv("HOME", folder.file(home).c_str(), 1);
        return cache_folder();
    };
    TileCache one(of_home("one")), two(of_home("two"));
    EXPECT_NE(one.folder(), two.folder());
    ASSERT_TRUE(one.store(kKey, kValue));
    EXPECT_EQ(two.find(kKey, kAny), kValue);
    ASSERT_TRUE(two.store(kKey, "other"));
    EXPECT_EQ(one.find(kKey, kAny), "other");
}

TEST(TileCache, TheFolderComesFromTheEnvironment) {
    ::setenv("DFLASH_CACHE_DIR", "own", 1);
    ::setenv("XDG_CACHE_HOME", "/xdg", 1);
    ::setenv("HOME", "/home/user", 1);
    EXPECT_EQ(cache_folder(), "own");
    ::setenv("DFLASH_CACHE_DIR", "", 1);
    EXPECT_EQ(cache_folder(), "/xdg/dflash");
    ::setenv("XDG_CACHE_HOME", "relative", 1);
    EXPECT_EQ(cache_folder(), "/home/user/.cache/dflash");
    ::unsetenv("XDG_CACHE_HOME");
    ::unsetenv("HOME");
    EXPECT_EQ(cache_folder(), "");
    EXPECT_EQ(build_id().size(), 8U);
    EXPECT_EQ(build_id(), build_id());
}

// Two threads warm up at once, on one object and on two, with shared and own keys: each key is measured once an object at most.
TEST(TileCacheThreads, WarmUpTogether) {
    constexpr int kSharedKeys = 20;
    const testing::TemporaryFolder folder;
    TileCache shared(folder.path());
    std::atomic<int> measurements{0};
    const auto warm_up = [&](int thread) {
        TileCache own(folder.path());
        for (int key = 0; key < kSharedKeys; ++key) {
            const auto measure = [&] {
                ++measurements;
                return key_of(0, key);
            };
            EXPECT_EQ(shared.find_or_measure(key_of(0, key), kAny, measure), key_of(0, key));
            EXPECT_EQ(own.find_or_measure(key_of(0, key), kAny, not_expected), key_of(0, key));
            EXPECT_EQ(own.find_or_measure(key_of(1 + thread, key), kAny, measured), kValue);
        }
    };
    std::thread first(warm_up, 0), second(warm_up, 1);
    first.join();
    second.join();
    EXPECT_EQ(measurements, kSharedKeys);
    EXPECT_EQ(shared.state().files, 3U * kSharedKeys);
    EXPECT_EQ(shared.state().set_aside, 0U);
}

}  // namespace
}  // namespace dflash
