// SPDX-License-Identifier: MIT
#include "data/content_hash.h"

#include <fmt/core.h>

#include "io/atomic_file.h"

namespace dflash {

namespace {

constexpr std::size_t kFoldAt = std::size_t{1} << 20;  // keeps the pending text short

template <typename T>
std::string_view bytes_of(std::span<const T> list) {
    return {reinterpret_cast<const char*>(list.data()), list.size_bytes()};
}

}  // namespace

void ContentHash::add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> loss_mask) {
    pending_ += fmt::format("{} {:08x} {:08x}\n", ids.size(), crc32c(bytes_of(ids)), crc32c(bytes_of(loss_mask)));
    if (pending_.size() >= kFoldAt) pending_ = sha256_hex(pending_);
}

std::string ContentHash::hex() const { return sha256_hex(pending_); }

}  // namespace dflash
