// SPDX-License-Identifier: MIT
// A checkpoint is a folder checkpoints/step-N: draft/ (bf16, ready to serve), optimizer.safetensors (f32 master, m and v by tensor name),
// state.json, checksums.json. It is written beside as ".step-N.partial", synced, and renamed when complete; older ones go only after.
// So a process killed at any moment, or a full disk, leaves the last complete one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "draft/draft_weights.h"
#include "draft/provenance.h"
#include "model/target_config.h"
#include "train/optimizer.h"
#include "train/run_folder.h"

namespace dflash {

struct RunHashes {  // of what a resumed run must find unchanged
    std::string config, data, target, draft;
};
struct TrainState {
    std::int64_t step = 0;               // steps done
    std::int64_t epoch = 0, cursor = 0;  // the next micro-batch: of this epoch, counted over all ranks
    std::int64_t seed = 0, threads = 0;
    RunHashes hashes;
};

struct CheckpointSource {
    const DraftSpec& spec;
    const TargetConfig& target;
    const DraftTensors& weights;
    const Optimizer& optimizer;
    const DraftProvenance& provenance;
    HostReader& reader;
};

// Writes step-N and then draft/ of the run, and removes all but the newest `keep` checkpoints and what killed saves left.
// Error(kFailed) when the disk does not take it: older checkpoints are then untouched.
void save_checkpoint(const RunFolder& folder, const TrainState& state, const CheckpointSource& source, std::int64_t keep);

struct FoundCheckpoint {
    std::string path;
    TrainState state;
};
// The newest checkpoint whose files are all there with the recorded sizes and checksums. What is passed over goes to `skipped`, with its reason.
std::optional<FoundCheckpoint> latest_checkpoint(const RunFolder& folder, std::vector<std::string>& skipped);

// Fills weights and moments, bit for bit. Error(kBadInput) when a tensor is missing or has another shape.
void load_checkpoint(const FoundCheckpoint& checkpoint, const Optimizer& optimizer);

}  // namespace dflash
