// SPDX-License-Identifier: MIT
// Choices that were measured once and are remembered, one small file a key in a folder that any number of programs share. No locks: a file
// is written beside and renamed, so that it is whole or absent whoever is killed, and no two keys share one. It holds its key, its value and
// a checksum; whatever is wrong with it (cut, of another key, illegal, no file at all) makes it a miss: it is set aside as NAME.bad with one
// warning, and its key is measured again. A folder that cannot be written is no error, only nothing is remembered.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace dflash {

// $DFLASH_CACHE_DIR, else $XDG_CACHE_HOME/dflash, else $HOME/.cache/dflash; empty where none of them is set (to an absolute path, for the
// latter two): then nothing is remembered.
std::string cache_folder();
// Of this program's file: a new build measures again.
std::string build_id();

class TileCache {
public:
    using Legal = std::function<bool(const std::string& value)>;

    explicit TileCache(std::string folder) : folder_(std::move(folder)) {}

    const std::string& folder() const { return folder_; }
    // The stored value; nothing where there is none, or `legal` refuses it. Neither key nor value may hold a line break.
    std::optional<std::string> find(const std::string& key, const Legal& legal);
    // False where it could not be written.
    bool store(const std::string& key, const std::string& value) const;
    // The value that this object knows or finds, else what `measure` returns, which is then stored. Of the threads that ask at one time one
    // measures while the others wait, since two measurements on one device would disturb each other.
    std::string find_or_measure(const std::string& key, const Legal& legal, const std::function<std::string()>& measure);
    // Where a key's file is, whether it is there or not.
    std::string path_of(const std::string& key) const;

    struct State {
        std::size_t files = 0, set_aside = 0;
        bool exists = false, writable = false;
    };
    State state() const;

private:
    std::optional<std::string> read(const std::string& key, const Legal& legal);
    void set_aside(const std::string& path, const std::string& key, const Legal& legal, const std::string& reason);

    std::string folder_;
    std::mutex mutex_;
    std::map<std::string, std::string> known_;
    std::map<std::string, std::string> warned_;  // of each path: what was wrong
};

}  // namespace dflash
