// SPDX-License-Identifier: MIT
#include "io/temporary_file.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "io/atomic_file.h"

namespace dflash {

namespace {

namespace fs = std::filesystem;

// Temporaries of FILE are called FILE.tmp-HOST-PID-N.
std::string temporary_prefix(const std::string& name) {
    std::array<char, 256> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
    return fmt::format("{}.tmp-{}-", name, host.data());
}

bool is_stale(std::string_view name, std::string_view prefix) {
    if (!name.starts_with(prefix)) return false;
    int pid = 0;
    const auto parsed = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), pid);
    return parsed.ec == std::errc() && pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH;
}

void remove_stale_temporaries(const std::string& folder, const std::string& prefix) {
    std::error_code ignored;
    for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end; it.increment(ignored)) {
        std::error_code not_removed;
        if (is_stale(it->path().filename().string(), prefix)) fs::remove(it->path(), not_removed);
    }
}

}  // namespace

std::string parent_folder(const std::string& path) {
    const std::string parent = fs::path(path).parent_path().string();
    return parent.empty() ? "." : parent;
}

TemporaryFile::TemporaryFile(const std::string& final_path) : final_path_(final_path) {
    std::error_code absent;
    const fs::file_status there = fs::status(final_path, absent);
    if (fs::exists(there) && !fs::is_regular_file(there)) {
        throw_bad_input("{}: is {}: name a file to write", final_path, fs::is_directory(there) ? "a folder" : "no regular file");
    }
    static std::atomic<int> counter{0};
    const std::string prefix = temporary_prefix(fs::path(final_path).filename().string());
    remove_stale_temporaries(parent_folder(final_path), prefix);
    path_ = (fs::path(parent_folder(final_path)) / fmt::format("{}{}-{}", prefix, ::getpid(), counter.fetch_add(1))).string();
    // Not O_EXCL: a killed process may have had our process id (in containers it usually does).
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd_ < 0) throw_failed("{}: cannot be written: {}", final_path_, std::strerror(errno));
}

TemporaryFile::~TemporaryFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!path_.empty()) ::unlink(path_.c_str());
}

void TemporaryFile::write_at(std::uint64_t offset, const void* data, std::size_t bytes) {
    const char* p = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t written = ::pwrite(fd_, p, bytes, static_cast<off_t>(offset));
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) throw_failed("{}: cannot be written: {}", final_path_, std::strerror(written < 0 ? errno : ENOSPC));
        p += written;
        offset += static_cast<std::uint64_t>(written);
        bytes -= static_cast<std::size_t>(written);
    }
}

void TemporaryFile::commit() {
    if (::fsync(fd_) != 0) throw_failed("{}: cannot be synced: {}", final_path_, std::strerror(errno));
    const int closed = ::close(fd_);
    fd_ = -1;
    if (closed != 0) throw_failed("{}: cannot be written: {}", final_path_, std::strerror(errno));
    if (::rename(path_.c_str(), final_path_.c_str()) != 0) throw_failed("{}: cannot be replaced: {}", final_path_, std::strerror(errno));
    path_.clear();
    sync_path(parent_folder(final_path_));
}

}  // namespace dflash
