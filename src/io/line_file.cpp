// SPDX-License-Identifier: MIT
#include "io/line_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace dflash {

std::ifstream open_line_file(const std::string& path, const std::string& what) {
    if (path.empty()) throw_bad_input("the name of the file of {} is empty", what);
    std::error_code unknown;
    if (std::filesystem::is_directory(path, unknown)) throw_bad_input("{} is a folder: give a JSONL file of {}", path, what);
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    if (!file) throw_bad_input("{} cannot be read: {}; give a JSONL file of {}", path, std::strerror(errno != 0 ? errno : EIO), what);
    for (const char mark : {'\xEF', '\xBB', '\xBF'}) {  // a byte order mark
        if (file.peek() != std::char_traits<char>::to_int_type(mark)) break;
        file.get();
    }
    file.clear();  // an empty file is no error here
    return file;
}

}  // namespace dflash
