// SPDX-License-Identifier: MIT
// config.json of drafters, both layouts, to and from DraftSpec. The only place that spells the keys. What each key means, and which server
// reads it: docs/formats.md.
#pragma once

#include <string>

#include "draft/draft_spec.h"

namespace dflash {

// Rules that hold for any drafter, whatever its target (sizes, block, windows, taps, mask token). Error(kBadInput) starting with `where`.
void check_draft_spec(const DraftSpec& spec, const std::string& where);

// A config.json already parsed. `where` names it in errors.
DraftSpec parse_draft_config(const Json& config, const std::string& where);

// `spec` with whatever the published-layout file says in its place (--draft-config): keys that the file leaves out stay.
DraftSpec overlay_draft_config(const DraftSpec& spec, const TargetConfig& target, const std::string& file);

// The speculators layout. It knows one attention kind for all layers: Error(kBadInput) for mixed ones.
Json draft_spec_to_speculators_json(const DraftSpec& spec, const TargetConfig& target);

// Logs what a server will not do as trained: SGLang runs sliding-window layers with causal blocks whatever the config says.
void warn_about_serving(const DraftSpec& spec);

}  // namespace dflash
