// SPDX-License-Identifier: MIT
#include "io/tile_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "io/atomic_file.h"

namespace dflash {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTitle = "dflash tile\n";
constexpr const char* kExtension = ".tile";
constexpr const char* kAside = ".bad";
constexpr std::size_t kLargestFile = 16 * 1024;

void check_line(const std::string& text, const char* what) {
    DFLASH_CHECK(text.find('\n') == std::string::npos, "the tile cache's {} holds a line break", what);
}

std::string file_text(const std::string& key, const std::string& value) {
    std::string text = fmt::format("{}key {}\nvalue {}\n", kTitle, key, value);
    return text + fmt::format("crc32c {:08x}\n", crc32c(text));
}

// Either a value, or what is wrong.
struct Content {
    std::optional<std::string> value;
    std::string fault;
};

// The value between what must stand around it: every other byte of the file is known.
Content parse(const std::string& text, const std::string& key) {
    const std::string head = fmt::format("{}key {}\nvalue ", kTitle, key);
    if (!text.starts_with(kTitle)) return {{}, text.empty() ? "it is empty" : "it is no file of this cache"};
    const std::size_t end = text.find('\n', head.size());
    if (!text.starts_with(head)) return {{}, "it is cut or of another key"};
    if (end == std::string::npos) return {{}, "it is cut"};
    const std::string value = text.substr(head.size(), end - head.size());
    if (text != file_text(key, value)) return {{}, "its checksum is wrong"};
    return {value, {}};
}

// A file as it is now; nothing where there is none. What cannot be read as a small file is an empty one.
std::optional<std::string> small_file(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR ? std::nullopt : std::optional<std::string>(std::string());
    std::string text(kLargestFile + 1, '\0');
    std::size_t size = 0;
    for (ssize_t got = 1; got > 0 && size < text.size(); size += static_cast<std::size_t>(got > 0 ? got : 0)) {
        got = ::read(fd, text.data() + size, text.size() - size);
    }
    ::close(fd);
    text.resize(size > kLargestFile ? 0 : size);
    return text;
}

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

}  // namespace

std::string cache_folder() {
    if (std::string own = variable("DFLASH_CACHE_DIR"); !own.empty()) return own;
    if (const std::string base = variable("XDG_CACHE_HOME"); base.starts_with('/')) return base + "/dflash";
    if (const std::string home = variable("HOME"); home.starts_with('/')) return home + "/.cache/dflash";
    return "";
}

std::string build_id() {
    static const std::string kId = fmt::format("{:08x}", crc32c_file("/proc/self/exe"));
    return kId;
}

std::string TileCache::path_of(const std::string& key) const {
    constexpr std::size_t kNameLength = 32;
    return (fs::path(folder_) / (sha256_hex(key).substr(0, kNameLength) + kExtension)).string();
}

// Another program may have put a good file in this one's place since it was read: then that goes back.
void TileCache::set_aside(const std::string& path, const std::string& key, const Legal& legal, const std::string& reason) {
    if (warned_[path] != reason) log_warning("[cache] {}: {}: not used, and measured again", path, reason);
    warned_[path] = reason;
    const std::string aside = path + kAside;
    if (::rename(path.c_str(), aside.c_str()) != 0) return;  // in a read-only folder it stays
    const std::optional<std::string> moved = small_file(aside);
    if (!moved) return;
    const Content content = parse(*moved, key);
    if (content.value && legal(*content.value)) {
        if (::link(aside.c_str(), path.c_str()) == 0 || errno == EEXIST) ::unlink(aside.c_str());
    }
}

std::optional<std::string> TileCache::read(const std::string& key, const Legal& legal) {
    if (folder_.empty()) return std::nullopt;
    const std::string path = path_of(key);
    const std::optional<std::string> text = small_file(path);
    if (!text) return std::nullopt;
    const Content content = parse(*text, key);
    if (content.value && legal(*content.value)) return content.value;
    set_aside(path, key, legal, content.value ? fmt::format("'{}' is no choice here", *content.value) : content.fault);
    return std::nullopt;
}

std::optional<std::string> TileCache::find(const std::string& key, const Legal& legal) {
    check_line(key, "key");
    const std::lock_guard lock(mutex_);
    return read(key, legal);
}

bool TileCache::store(const std::string& key, const std::string& value) const {
    check_line(key, "key");
    check_line(value, "value");
    if (folder_.empty()) return false;
    std::error_code error;
    fs::create_directories(folder_, error);
    try {
        write_file_atomically(path_of(key), file_text(key, value));
    } catch (const Error&) {
        return false;
    }
    return true;
}

std::string TileCache::find_or_measure(const std::string& key, const Legal& legal, const std::function<std::string()>& measure) {
    check_line(key, "key");
    const std::lock_guard lock(mutex_);
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    std::optional<std::string> value = read(key, legal);
    if (!value) {
        value = measure();
        store(key, *value);
    }
    known_[key] = *value;
    return *value;
}

TileCache::State TileCache::state() const {
    State state;
    std::error_code error;
    for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
        const std::string extension = it->path().extension().string();
        state.files += extension == kExtension ? 1 : 0;
        state.set_aside += extension == kAside ? 1 : 0;
    }
    state.exists = fs::is_directory(folder_, error);
    state.writable = state.exists && ::faccessat(AT_FDCWD, folder_.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
    return state;
}

}  // namespace dflash
