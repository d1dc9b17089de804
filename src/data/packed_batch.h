// SPDX-License-Identifier: MIT
// One micro-batch: whole documents laid one after another in a row of at most `token_budget` tokens. Host memory; vectors are
// reserved once by the loader and reused, so filling one allocates nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dflash {

struct PackedBatch {
    std::vector<std::int32_t> ids;              // (S) tokens
    std::vector<std::uint8_t> loss_mask;        // (S) 1 = the assistant's own token
    std::vector<std::int32_t> document;         // (S) index of the document within this batch, from 0
    std::vector<std::int32_t> position;         // (S) position within the document, from 0
    std::vector<std::int32_t> document_begin;   // (documents + 1) first row of each document, then S
    std::vector<std::int64_t> row_of_document;  // (documents) row of the prepared data set each document came from
    std::int64_t epoch = 0;
    std::int64_t index = 0;  // number of this micro-batch within its epoch, over all ranks

    std::int64_t tokens() const { return static_cast<std::int64_t>(ids.size()); }
    std::int64_t documents() const { return static_cast<std::int64_t>(document_begin.size()) - 1; }
};

}  // namespace dflash
