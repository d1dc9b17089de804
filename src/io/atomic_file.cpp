// SPDX-License-Identifier: MIT
#include "io/atomic_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "io/mapped_file.h"
#include "io/temporary_file.h"

namespace dflash {

namespace {

namespace fs = std::filesystem;

void rename_path(const std::string& from, const std::string& to) {
    if (::rename(from.c_str(), to.c_str()) != 0) throw_failed("{}: cannot be renamed to {}: {}", from, to, std::strerror(errno));
}

// Swaps two existing folders; in one step where the file system can, so that `path` always names a complete folder.
void exchange_folders(const std::string& staging, const std::string& path) {
    if (::renameat2(AT_FDCWD, staging.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return;
    if (errno != EINVAL && errno != ENOSYS) throw_failed("{}: cannot be replaced: {}", path, std::strerror(errno));
    const std::string aside = path + ".old";
    std::error_code ignored;
    fs::remove_all(aside, ignored);
    rename_path(path, aside);
    rename_path(staging, path);
    rename_path(aside, staging);
}

}  // namespace

void write_file_atomically(const std::string& path, std::string_view content) {
    TemporaryFile file(path);
    file.write_at(0, content.data(), content.size());
    file.commit();
}

void check_publishable(const std::string& path) {
    fs::path clean = fs::path(path).lexically_normal();
    if (!clean.has_filename()) clean = clean.parent_path();  // a slash at the end
    const std::string name = clean.filename().string();
    if (name.empty() || name == "." || name == "..") throw_bad_input("'{}' cannot be replaced: give the folder to make a name", path);
    std::error_code unknown;
    if (fs::is_symlink(fs::symlink_status(clean, unknown)) && !path_exists(clean.string())) {
        throw_bad_input("{}: is a link that leads nowhere: remove it or name another folder", path);
    }
    for (fs::path above = clean.parent_path(); above.has_filename(); above = above.parent_path()) {
        if (!path_exists(above.string())) continue;
        if (!fs::is_directory(above, unknown)) throw_bad_input("{}: {} is no folder", path, above.string());
        return;
    }
}

void publish_folder(const std::string& staging, const std::string& path) {
    sync_path(staging);
    std::error_code unread;
    for (fs::recursive_directory_iterator it(staging, unread), end; !unread && it != end; it.increment(unread)) {
        sync_path(it->path().string());
    }
    if (unread) throw_failed("{}: cannot be read: {}", staging, unread.message());
    const bool replaces = path_exists(path);
    if (replaces) {
        exchange_folders(staging, path);
    } else {
        rename_path(staging, path);
    }
    sync_path(parent_folder(path));
    std::error_code error;
    if (replaces && fs::remove_all(staging, error) == static_cast<std::uintmax_t>(-1)) {
        throw_failed("{}: the replaced folder cannot be removed: {}", staging, error.message());
    }
}

void sync_path(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw_failed("{}: cannot be opened to sync it: {}", path, std::strerror(errno));
    const int error = ::fsync(fd) == 0 ? 0 : errno;
    ::close(fd);
    // Some network file systems have no fsync for folders; there is nothing more to do then.
    if (error != 0 && error != EINVAL) throw_failed("{}: cannot be synced: {}", path, std::strerror(error));
}

bool path_exists(const std::string& path) {
    std::error_code unknown;
    return fs::exists(path, unknown);
}

std::string read_file(const std::string& path) {
    const MappedFile file(path);
    return {file.data(), file.size()};
}

}  // namespace dflash
