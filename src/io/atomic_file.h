// SPDX-License-Identifier: MIT
// Files and folders that are either complete or absent: written beside, synced, renamed. A full disk or a killed process
// leaves the old content, and at most a temporary that the next run removes. Throw Error(kFailed) with the system's reason.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dflash {

void write_file_atomically(const std::string& path, std::string_view content);
// Error(kBadInput) where no folder can be published: a path without a name of its own (".", "/"), a link that leads nowhere, a file above it.
// To be called before the work whose result goes there.
void check_publishable(const std::string& path);
// Replaces folder `path` by the finished folder `staging` (same parent); an existing `path` is removed after.
void publish_folder(const std::string& staging, const std::string& path);
// fsync of a file or folder.
void sync_path(const std::string& path);

bool path_exists(const std::string& path);       // false also for a path that cannot be looked at
std::string read_file(const std::string& path);  // Error(kBadInput) when it cannot be read
// CRC-32C (Castagnoli), for checkpoints and shards.
std::uint32_t crc32c(std::string_view bytes, std::uint32_t seed = 0);
std::uint32_t crc32c_file(const std::string& path);
// SHA-256 in lower-case hex: fingerprints of configs, data and targets.
std::string sha256_hex(std::string_view bytes);

}  // namespace dflash
