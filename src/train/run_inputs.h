// SPDX-License-Identifier: MIT
// What a run is made of, read and checked before anything large is allocated: configs, data sets, evaluation prompts, fingerprints, and the
// settings with every "auto" resolved.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/chat_template.h"
#include "data/dataset.h"
#include "draft/draft_spec.h"
#include "kernels/cuda/attention_choice.h"
#include "model/target_config.h"
#include "train/run_settings.h"

namespace dflash {

struct RunInputs {
    RunSettings settings;  // resolved
    TargetConfig target;
    DraftSpec draft;
    std::optional<Dataset> data, validation;  // with --features, `data` is the data set in that folder
    ChatTemplate chat_template;
    std::vector<std::vector<std::int32_t>> prompts;  // to decode in evaluations
    std::string target_fingerprint, data_fingerprint;
    cuda::AttentionChoices attention;  // kernels that were chosen for this run's shapes, in its record and kept on --resume
};

// Names that are missing or do not go together, before files are read: Error(kBadInput).
void check_run_paths(const RunSettings& settings);

// Target and drafter: their configs are read, compared and resolved. Nothing is written, no weight is loaded.
RunInputs read_run_configs(const RunSettings& settings);

// Opens the data; a JSONL file is prepared in memory. Error(kBadInput) for data of another tokenizer, with the mask token or placeholders
// in it, with ids outside the vocabulary.
void open_run_data(RunInputs& inputs);

// The mask token that the target's tokenizer has, or -1.
std::int32_t tokenizer_mask_token(const std::string& target_folder);

}  // namespace dflash
