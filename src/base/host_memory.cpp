// SPDX-License-Identifier: MIT
#include "base/host_memory.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace dflash {
namespace {

// The number behind "KEY:" in a /proc file, in bytes (the files count kB).
std::size_t proc_value(const char* path, const char* key) {
    std::FILE* file = std::fopen(path, "r");
    if (file == nullptr) return 0;
    char line[256];
    unsigned long long kilobytes = 0;
    while (std::fgets(line, sizeof line, file) != nullptr) {
        if (std::strncmp(line, key, std::strlen(key)) != 0) continue;
        if (std::sscanf(line + std::strlen(key), ": %llu", &kilobytes) != 1) kilobytes = 0;
        break;
    }
    std::fclose(file);
    return static_cast<std::size_t>(kilobytes) * 1024;
}

// A file that holds one number; "max" and absent files give 0.
std::size_t number_in(const char* path) {
    std::FILE* file = std::fopen(path, "r");
    if (file == nullptr) return 0;
    unsigned long long value = 0;
    if (std::fscanf(file, "%llu", &value) != 1) value = 0;
    std::fclose(file);
    return static_cast<std::size_t>(value);
}

}  // namespace

std::size_t host_memory_available_bytes() {
    const std::size_t available = proc_value("/proc/meminfo", "MemAvailable");
    const std::size_t limit = number_in("/sys/fs/cgroup/memory.max");
    const std::size_t used = number_in("/sys/fs/cgroup/memory.current");
    if (limit == 0) return available;
    return std::min(available, limit > used ? limit - used : std::size_t{0});
}

std::size_t resident_bytes() { return proc_value("/proc/self/status", "VmRSS"); }
std::size_t resident_peak_bytes() { return proc_value("/proc/self/status", "VmHWM"); }
std::size_t resident_file_bytes() { return proc_value("/proc/self/status", "RssFile"); }

}  // namespace dflash
