// SPDX-License-Identifier: MIT
// How checkpoint writers spell the target's tensors: name prefixes, and the groups that a text-only forward leaves out.
#pragma once

#include <cstdint>
#include <string>

#include "io/safetensors.h"

namespace dflash {

enum class TensorGroup { kEmbedding, kLayer, kFinalNorm, kHead, kVision, kMtp, kOther };

class CheckpointNames {
public:
    // Finds the prefix by where the embedding stands. Throws Error(kBadInput) when it stands nowhere, or under two prefixes.
    explicit CheckpointNames(const SafetensorsFolder& checkpoint);

    // Name in the files of a name of the weight table.
    std::string in_file(const std::string& name) const;
    // Which group a name in the files belongs to, and its layer (-1 outside the layers).
    TensorGroup group(const std::string& name_in_file, std::int64_t& layer) const;

private:
    std::string prefix_;  // "model.", "model.language_model." or "language_model.model."
    std::string head_;
};

}  // namespace dflash
