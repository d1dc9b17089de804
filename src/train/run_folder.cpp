// SPDX-License-Identifier: MIT
#include "train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace dflash {

RunFolder::RunFolder(const std::string& path) : path_(path) {
    std::error_code failure;
    std::filesystem::create_directories(path, failure);
    if (failure) throw_failed("cannot make the run folder {}: {}", path, failure.message());
    const std::string file = path + "/lock";
    lock_ = open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    if (lock_ < 0) throw_failed("cannot write {}: {}", file, std::strerror(errno));
    // The system drops the lock when the process ends, however it ends: no stale lock is possible.
    if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
        close(lock_);
        throw_bad_input("another process trains in {}: wait for it, stop it, or choose another --out", path);
    }
}

RunFolder::~RunFolder() { close(lock_); }

std::string RunFolder::checkpoint(std::int64_t step) const { return fmt::format("{}/step-{}", checkpoints(), step); }

bool RunFolder::holds_run() const { return std::filesystem::exists(config()) || std::filesystem::exists(checkpoints()); }

}  // namespace dflash
