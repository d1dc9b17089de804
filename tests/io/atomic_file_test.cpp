// SPDX-License-Identifier: MIT
// A file is the old one or the new one, whatever happens in between.
#include "io/atomic_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/rng.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace dflash {
namespace {

using testing::throws;

TEST(AtomicFile, WritesAndReplaces) {
    const testing::TemporaryFolder folder;
    const std::string path = folder.file("f");
    for (const std::string& content : {std::string("old"), std::string(), std::string("new\0x", 5), std::string(1000000, 'a')}) {
        write_file_atomically(path, content);
        EXPECT_EQ(read_file(path), content);
    }
    EXPECT_EQ(folder.num_files(), 1U);
    EXPECT_TRUE(testing::refuses([&] { read_file(folder.file("absent")); }, {"absent", "No such file"}));
}

// A limit on the size of files stands in for a full disk: write() fails half way.
TEST(AtomicFile, AFullDiskLeavesTheOldFile) {
    const testing::TemporaryFolder folder;
    const std::string path = folder.file("f");
    write_file_atomically(path, "old");
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto handler = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{4096, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const auto result =
        throws(ErrorKind::kFailed, [&] { write_file_atomically(path, std::string(10000, 'n')); }, {path, "cannot be written"});
    ::setrlimit(RLIMIT_FSIZE, &before);
    ::signal(SIGXFSZ, handler);
    EXPECT_TRUE(result);
    EXPECT_EQ(read_file(path), "old");
    EXPECT_EQ(folder.num_files(), 1U);
}

TEST(AtomicFile, AReadOnlyFolderLeavesTheOldFile) {
    const testing::TemporaryFolder folder;
    const std::string path = folder.file("f");
    write_file_atomically(path, "old");
    ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
    const uid_t user = ::geteuid();
    constexpr uid_t kNobody = 65534;
    const bool is_root = user == 0;
    ASSERT_EQ(::seteuid(is_root ? kNobody : user), 0);  // root may write everywhere
    const auto result = throws(ErrorKind::kFailed, [&] { write_file_atomically(path, "new"); }, {path, "Permission denied"});
    ASSERT_EQ(::seteuid(user), 0);
    ::chmod(folder.path().c_str(), 0755);
    EXPECT_TRUE(result);
    EXPECT_EQ(read_file(path), "old");
}

TEST(AtomicFile, AWriterKilledAtAnyMomentLeavesAWholeFile) {
    const testing::TemporaryFolder folder;
    const std::string path = folder.file("f");
    const std::string a(300000, 'a');
    const std::string b(200000, 'b');
    write_file_atomically(path, a);
    Philox rng(1, 1);
    for (int round = 0; round < 20; ++round) {
        const pid_t child = ::fork();
        if (child == 0) {
            for (;;) {
                write_file_atomically(path, b);
                write_file_atomically(path, a);
            }
        }
        ASSERT_GT(child, 0);
        ::usleep(static_cast<useconds_t>(1000 + rng.next_below(10000)));
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
        const std::string content = read_file(path);
        ASSERT_TRUE(content == a || content == b) << content.size();
    }
    write_file_atomically(path, a);  // removes what the killed ones left
    EXPECT_EQ(folder.num_files(), 1U);
}

TEST(AtomicFile, TheTemporaryOfALivingWriterStays) {
    const testing::TemporaryFolder folder;
    const std::string path = folder.file("f");
    char host[256] = "";
    ASSERT_EQ(::gethostname(host, sizeof(host) - 1), 0);
    const std::string living = folder.write(fmt::format("f.tmp-{}-{}-0", host, ::getppid()), "x");
    write_file_atomically(path, "y");
    EXPECT_TRUE(std::filesystem::exists(living));
}

// In containers a process id comes back at once: what an earlier process with ours left must not stop us.
TEST(AtomicFile, ATemporaryOfOurOwnProcessIdIsWrittenOver) {
    const testing::TemporaryFolder folder;
    char host[256] = "";
    ASSERT_EQ(::gethostname(host, sizeof(host) - 1), 0);
    constexpr int kMoreThanWereWritten = 2000;
    for (int i = 0; i < kMoreThanWereWritten; ++i)
        folder.write(fmt::format("f.tmp-{}-{}-{}", host, ::getpid(), i), "longer than the new content");
    write_file_atomically(folder.file("f"), "new");
    EXPECT_EQ(read_file(folder.file("f")), "new");
}

TEST(AtomicFile, PublishesAFolder) {
    const testing::TemporaryFolder folder;
    const auto stage = [&](const std::string& content) {
        std::filesystem::create_directories(folder.file("staging/deep"));
        write_file_atomically(folder.file("staging/deep/f"), content);
    };
    stage("one");
    publish_folder(folder.file("staging"), folder.file("final"));
    EXPECT_EQ(read_file(folder.file("final/deep/f")), "one");
    stage("two");
    write_file_atomically(folder.file("final/only-in-old"), "x");
    publish_folder(folder.file("staging"), folder.file("final"));
    EXPECT_EQ(read_file(folder.file("final/deep/f")), "two");
    EXPECT_FALSE(std::filesystem::exists(folder.file("final/only-in-old")));
    EXPECT_EQ(folder.num_files(), 1U);
    EXPECT_TRUE(throws(ErrorKind::kFailed, [&] { publish_folder(folder.file("absent"), folder.file("final")); }, {"absent"}));
    EXPECT_EQ(read_file(folder.file("final/deep/f")), "two");
}

TEST(Hash, Crc32c) {
    EXPECT_EQ(crc32c(""), 0U);
    EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
    EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
    EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43U);
    EXPECT_EQ(crc32c("456789", crc32c("123")), 0xE3069283U);
    const testing::TemporaryFolder folder;
    EXPECT_EQ(crc32c_file(folder.write("f", "123456789")), 0xE3069283U);
    EXPECT_EQ(crc32c_file(folder.write("g", "")), 0U);
}

TEST(Hash, Sha256) {
    EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(sha256_hex(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(AtomicFile, WhatIsNoFileIsNotReplaced) {
    const testing::TemporaryFolder folder;
    const std::string pipe = folder.file("pipe");
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_TRUE(testing::refuses([&] { write_file_atomically(pipe, "x"); }, {"pipe: is no regular file"}));
    EXPECT_TRUE(testing::refuses([&] { write_file_atomically(folder.path(), "x"); }, {"is a folder"}));
    EXPECT_TRUE(std::filesystem::is_fifo(pipe));
    EXPECT_EQ(folder.num_files(), 1U);
}

TEST(AtomicFile, FoldersThatCannotBePublishedAreKnownBeforehand) {
    const testing::TemporaryFolder folder;
    const std::string link = folder.file("link");
    std::filesystem::create_symlink(folder.file("nowhere"), link);
    const std::string file = folder.write("file", "x");
    for (const char* nameless : {".", "..", "/", "./", "a/.."}) {
        EXPECT_TRUE(testing::refuses([&] { check_publishable(nameless); }, {std::string("'") + nameless + "'"}));
    }
    EXPECT_TRUE(testing::refuses([&] { check_publishable(link); }, {"link: is a link that leads nowhere"}));
    EXPECT_TRUE(testing::refuses([&] { check_publishable(link + "/"); }, {"leads nowhere"}));
    EXPECT_TRUE(testing::refuses([&] { check_publishable(file + "/a/b"); }, {"file is no folder"}));
    for (const std::string& good : std::vector<std::string>{folder.file("new"), folder.file("new/deeper/"), folder.path(), "bare"}) {
        EXPECT_NO_THROW(check_publishable(good)) << good;
    }
}

}  // namespace
}  // namespace dflash
