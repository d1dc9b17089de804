// SPDX-License-Identifier: MIT
// Which drafter a run trains: made from the target, the flags and --draft-config, or the one that --init-from continues.
#pragma once

#include "data/chat_template.h"
#include "draft/draft_spec.h"
#include "model/target_config.h"
#include "train/run_settings.h"

namespace dflash {

// `tokenizer_mask`: id of the tokenizer's own mask token, -1 = none. With --init-from, flags of the geometry that were given and differ from
// the drafter's config.json are Error(kBadInput), as is a drafter of another target.
DraftSpec choose_draft_spec(const RunSettings& settings, const TargetConfig& target, std::int32_t tokenizer_mask);

// --init-from: refuses a drafter whose training.json says that it was trained with another template or thinking mode than the data has.
void check_same_template(const std::string& draft_folder, const ChatTemplate& data_template);

}  // namespace dflash
