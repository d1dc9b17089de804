// SPDX-License-Identifier: MIT
// The reader of tokenizer.json on arbitrary bytes: it either refuses them with Error(kBadInput) in one line, or gives a tokenizer that
// takes text apart and puts it together again.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "io/tokenizer.h"

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

constexpr std::string_view kText = "hello  world\r\n\n12345 don't <|im_end|>\t日本 e\u0301 a\u180e aaaaaaaaaaaaaaaa";

void check(const dflash::Tokenizer& tokenizer) {
    const auto ids = tokenizer.encode(kText, false);
    for (const std::int32_t id : ids) require(id >= 0 && id < tokenizer.vocabulary_size());
    require(tokenizer.decode(ids) == tokenizer.normalized(kText));
    for (const std::int32_t id : tokenizer.encode(kText)) require(!tokenizer.token_bytes(id).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    try {
        check(dflash::Tokenizer::from_json({reinterpret_cast<const char*>(data), size}, "fuzz"));
    } catch (const dflash::Error& error) {
        require(error.kind() == dflash::ErrorKind::kBadInput);
        require(std::string_view(error.what()).find('\n') == std::string_view::npos);
    }
    return 0;
}
