// SPDX-License-Identifier: MIT
// Byte-pair encoding of one word: starts from single bytes and joins, again and again, the neighbouring pair whose merge has the lowest
// rank, the leftmost of equals. A priority queue over the pairs makes a word of n bytes take n log n.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dflash {

class Bpe {
public:
    // A byte without a token has kNoToken.
    static constexpr std::int32_t kNoToken = -1;
    std::array<std::int32_t, 256> byte_tokens = filled_with_no_token();

    // `rank`: place in the list of merges; a repeated pair keeps its last rank.
    void add_merge(std::int32_t left, std::int32_t right, std::int32_t rank, std::int32_t merged);
    // Appends the ids. Returns the first byte that has no token, with nothing appended.
    std::optional<unsigned char> encode(std::string_view word, std::vector<std::int32_t>& ids) const;

private:
    struct Merge {
        std::int32_t rank;
        std::int32_t id;
    };
    struct PairHash {
        std::size_t operator()(std::uint64_t pair) const { return static_cast<std::size_t>((pair ^ (pair >> 29)) * 0x9E3779B97F4A7C15ULL); }
    };
    static constexpr std::array<std::int32_t, 256> filled_with_no_token() {
        std::array<std::int32_t, 256> table{};
        for (std::int32_t& entry : table) entry = kNoToken;
        return table;
    }
    const Merge* find(std::int32_t left, std::int32_t right) const;

    std::unordered_map<std::uint64_t, Merge, PairHash> merges_;
    friend class WordMerger;
};

}  // namespace dflash
