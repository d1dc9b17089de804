// SPDX-License-Identifier: MIT
// Writing a drafter for engines that read the speculators layout: the body plus copies of the target's embedding and head.
#pragma once

#include <string>

#include "draft/draft_model.h"
#include "draft/provenance.h"

namespace dflash {

// config.json, model.safetensors and training.json into `folder`. Error(kBadInput) before anything is written when the layout cannot
// express the drafter (mixed layer kinds).
void save_speculators(const std::string& folder, const DraftModel& model, const TargetConfig& target, const DraftProvenance& provenance,
                      HostReader& reader, SavedAs saved_as);

}  // namespace dflash
