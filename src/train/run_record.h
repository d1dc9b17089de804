// SPDX-License-Identifier: MIT
// What a run writes down about itself: config.json of the run folder (settings, drafter, fingerprints), training.json beside the drafter,
// and the hashes by which --resume knows that it continues the same run.
#pragma once

#include <string>

#include "draft/provenance.h"
#include "train/checkpoint.h"
#include "train/run_inputs.h"

namespace dflash {

// Hashes of the curve's settings, the data, the target and the drafter's config.
RunHashes run_hashes(const RunInputs& inputs);

void write_run_record(const std::string& path, const RunInputs& inputs);
RunSettings read_recorded_settings(const std::string& path);
// The attention kernels that the run chose at its start; an empty object where the record has none.
nlohmann::json read_recorded_attention(const std::string& path);

// Error(kBadInput) naming the first thing that differs from the record or the checkpoint.
void check_recorded_hashes(const std::string& path, const RunHashes& now);
void check_unchanged(const TrainState& saved, const RunHashes& now, const RunSettings& settings, const std::string& where);

DraftProvenance make_provenance(const RunInputs& inputs);

// "5 layers, 4 sliding (window 2048) and 1 full, hidden 256, ..." in one line.
std::string describe_draft(const DraftSpec& spec);

}  // namespace dflash
