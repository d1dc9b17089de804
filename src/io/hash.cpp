// SPDX-License-Identifier: MIT
// CRC-32C by slicing over 8 bytes (Kounavis and Berry, 2005) and SHA-256 (FIPS 180-4).
#include <fmt/core.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "io/atomic_file.h"

namespace dflash {

namespace {

using CrcTables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr CrcTables make_crc_tables() {
    CrcTables tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0x82F63B78U & (0U - (crc & 1U)));
        tables[0][byte] = crc;
    }
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        for (std::size_t t = 1; t < 8; ++t) tables[t][byte] = (tables[t - 1][byte] >> 8) ^ tables[0][tables[t - 1][byte] & 0xFFU];
    }
    return tables;
}
constexpr CrcTables kCrc = make_crc_tables();

constexpr std::array<std::uint32_t, 64> kShaRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using ShaState = std::array<std::uint32_t, 8>;

std::uint32_t load_big_endian(const unsigned char* p) {
    return (std::uint32_t{p[0]} << 24) | (std::uint32_t{p[1]} << 16) | (std::uint32_t{p[2]} << 8) | std::uint32_t{p[3]};
}

void sha_block(ShaState& state, const unsigned char* block) {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t i = 0; i < 16; ++i) w[i] = load_big_endian(block + 4 * i);
    for (std::size_t i = 16; i < 64; ++i) {
        const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
        const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (std::size_t i = 0; i < 64; ++i) {
        const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
        const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kShaRounds[i] + w[i];
        const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
        const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + t2;
    }
    const ShaState add = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state[i] += add[i];
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes, std::uint32_t seed) {
    std::uint32_t crc = ~seed;
    const char* p = bytes.data();
    std::size_t left = bytes.size();
    for (; left >= 8; p += 8, left -= 8) {
        std::array<unsigned char, 8> b{};
        std::memcpy(b.data(), p, 8);
        for (std::size_t i = 0; i < 4; ++i) b[i] = static_cast<unsigned char>(b[i] ^ (crc >> (8 * i)));
        crc = 0;
        for (std::size_t i = 0; i < 8; ++i) crc ^= kCrc[7 - i][b[i]];
    }
    for (; left > 0; ++p, --left) crc = (crc >> 8) ^ kCrc[0][(crc ^ static_cast<unsigned char>(*p)) & 0xFFU];
    return ~crc;
}

// Read in small pieces: a checkpoint is checked in the middle of training, where nothing of size may be mapped or allocated.
std::uint32_t crc32c_file(const std::string& path) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
    if (!file) throw_bad_input("{}: cannot be read: {}", path, std::strerror(errno));
    std::array<char, 32768> piece;
    std::uint32_t crc = 0;
    std::size_t count = 0;
    while ((count = std::fread(piece.data(), 1, piece.size(), file.get())) > 0) crc = crc32c({piece.data(), count}, crc);
    if (std::ferror(file.get()) != 0) throw_failed("{}: cannot be read: {}", path, std::strerror(errno));
    return crc;
}

std::string sha256_hex(std::string_view bytes) {
    ShaState state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
    std::size_t left = bytes.size();
    for (; left >= 64; p += 64, left -= 64) sha_block(state, p);
    // The end: a one bit, zeros, and the length in bits (big-endian) in the last 8 bytes of a block.
    std::array<unsigned char, 128> tail{};
    if (left > 0) std::memcpy(tail.data(), p, left);
    tail[left] = 0x80;
    const std::size_t tail_bytes = left < 56 ? 64 : 128;
    const std::uint64_t bits = std::uint64_t{bytes.size()} * 8;
    for (std::size_t i = 0; i < 8; ++i) tail[tail_bytes - 1 - i] = static_cast<unsigned char>(bits >> (8 * i));
    for (std::size_t i = 0; i < tail_bytes; i += 64) sha_block(state, tail.data() + i);

    std::string hex;
    for (const std::uint32_t word : state) hex += fmt::format("{:08x}", word);
    return hex;
}

}  // namespace dflash
