// SPDX-License-Identifier: MIT
// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// A value depends on (seed, stream, counter) alone, so any rank or resumed run draws the same numbers.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace dflash {

class Philox {
public:
    // `stream` separates uses of one seed (data order, anchors of one micro-batch, initialisation of one tensor, ...).
    Philox(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}

    std::uint32_t next_u32() {
        if (used_ == 4) {
            block_ = block(counter_++);
            used_ = 0;
        }
        return block_[static_cast<std::size_t>(used_++)];
    }
    std::uint64_t next_u64() {
        const std::uint64_t high = next_u32();
        return (high << 32) | next_u32();
    }
    // Uniform in [0, 1).
    double next_double() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }
    // Uniform in [0, bound), bound > 0, without modulo bias (rejection).
    std::uint64_t next_below(std::uint64_t bound) {
        const std::uint64_t limit = bound * (~std::uint64_t{0} / bound);
        std::uint64_t value = next_u64();
        while (value >= limit) value = next_u64();
        return value % bound;
    }
    // Standard normal (Box-Muller; one value of the pair).
    double next_normal() {
        const double u = 1.0 - next_double();
        const double v = next_double();
        return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
    }

    std::array<std::uint32_t, 4> block(std::uint64_t counter) const {
        std::array<std::uint32_t, 4> x = {low(counter), high(counter), low(stream_), high(stream_)};
        std::uint32_t k0 = low(seed_);
        std::uint32_t k1 = high(seed_);
        for (int round = 0; round < 10; ++round) {
            const std::uint64_t p0 = 0xD2511F53ULL * x[0];
            const std::uint64_t p1 = 0xCD9E8D57ULL * x[2];
            x = {high(p1) ^ x[1] ^ k0, low(p1), high(p0) ^ x[3] ^ k1, low(p0)};
            k0 += 0x9E3779B9U;
            k1 += 0xBB67AE85U;
        }
        return x;
    }

private:
    static std::uint32_t low(std::uint64_t v) { return static_cast<std::uint32_t>(v); }
    static std::uint32_t high(std::uint64_t v) { return static_cast<std::uint32_t>(v >> 32); }

    std::uint64_t seed_;
    std::uint64_t stream_;
    std::uint64_t counter_ = 0;
    std::array<std::uint32_t, 4> block_{};
    int used_ = 4;
};

// Mixes several keys into one stream number (splitmix64 finaliser).
inline std::uint64_t mix_stream(std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0) {
    std::uint64_t h = 0;
    for (const std::uint64_t key : {a, b, c}) {
        h += key + 0x9E3779B97F4A7C15ULL;
        h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ULL;
        h = (h ^ (h >> 27)) * 0x94D049BB133111EBULL;
        h ^= h >> 31;
    }
    return h;
}

}  // namespace dflash
