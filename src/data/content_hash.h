// SPDX-License-Identifier: MIT
// The fingerprint of a data set's content: SHA-256 over length and checksums of each document in order. The same documents have the same
// fingerprint however they are cut into shards.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace dflash {

class ContentHash {
public:
    void add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> loss_mask);
    std::string hex() const;

private:
    std::string pending_;
};

}  // namespace dflash
