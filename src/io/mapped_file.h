// SPDX-License-Identifier: MIT
// A read-only memory-mapped file. Move-only; unmapped in the destructor.
#pragma once

#include <cstddef>
#include <string>

namespace dflash {

class MappedFile {
public:
    // Throws Error(kBadInput) naming the path and the system's reason.
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;

    const char* data() const { return data_; }
    std::size_t size() const { return size_; }
    const std::string& path() const { return path_; }
    // Tells the system that the pages are not needed any more (they stop counting as resident).
    void drop_pages() const;

private:
    std::string path_;
    const char* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace dflash
