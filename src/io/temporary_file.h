// SPDX-License-Identifier: MIT
// A file that is written beside its final path and takes that path only in commit(); otherwise it is removed. What a killed process
// left behind for the same path is removed by the next writer. Failures are Error(kFailed) with the system's reason;
// a folder or a device at the path, which must not be replaced, is Error(kBadInput).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace dflash {

class TemporaryFile {
public:
    explicit TemporaryFile(const std::string& final_path);
    ~TemporaryFile();
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;

    // All of `bytes` at `offset`; parts never written read as zeros.
    void write_at(std::uint64_t offset, const void* data, std::size_t bytes);
    void commit();  // sync, rename, sync the folder

private:
    std::string final_path_;
    std::string path_;
    int fd_ = -1;
};

// The folder that holds `path` ("." for a bare name).
std::string parent_folder(const std::string& path);

}  // namespace dflash
