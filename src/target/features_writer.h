// SPDX-License-Identifier: MIT
// Writes the target's features of a data set: into one safetensors file for looking at, or into a folder of shards to train from. Nothing
// appears under the final name before it is complete.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "data/dataset.h"
#include "target/feature_extractor.h"

namespace dflash {

struct FeaturesOutput {
    std::string target;  // checkpoint folder
    std::string out;     // file or folder to make
    FeatureRequest request;
    DType dtype = DType::kF32;  // of hidden and final states: f32 or bf16
    std::int64_t shard_bytes = std::int64_t{1} << 30;
    Device device = {};
};
// Called after each document with the tokens done so far.
using FeaturesProgress = std::function<void(std::int64_t documents_done, std::int64_t tokens_done)>;

// Names begin with the rows' ids: ID.input_ids i32, ID.loss_mask u8, ID.hidden.{n+1}, ID.final, ID.logsumexp f32, ID.argmax i32.
// Error(kBadInput) when two rows share an id.
void write_features_file(const Dataset& data, const FeaturesOutput& output, const FeaturesProgress& progress);

// features_folder.h. `make_data(folder)` puts the prepared data set into `folder`; logits are not stored. Returns the number of shards.
std::int64_t write_features_folder(const std::function<void(const std::string&)>& make_data, const FeaturesOutput& output,
                                   const std::function<FeaturesProgress(const Dataset&)>& start_progress);

}  // namespace dflash
