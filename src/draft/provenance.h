// SPDX-License-Identifier: MIT
// What a drafter's folder says about its making, beside config.json: training.json with template, thinking mode, alignment, the target's
// fingerprint and the training settings. Servers do not read it; loading compares it with what is asked for.
#pragma once

#include <string>

#include "io/json.h"

namespace dflash {

struct DraftProvenance {
    Json training = Json::object();
};
// training.json of a drafter's folder; an empty object when there is none (drafters from elsewhere). Throws Error(kBadInput) on bad JSON.
DraftProvenance read_draft_provenance(const std::string& folder);

}  // namespace dflash
