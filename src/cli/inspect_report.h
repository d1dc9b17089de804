// SPDX-License-Identifier: MIT
// What `dflash inspect` says about a path, as one tree: printed as JSON or as indented text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace dflash::cli {

using Report = nlohmann::ordered_json;

// A target or drafter folder (or its config.json), a safetensors file or folder, a folder with a manifest.json, a run folder or one of its
// checkpoints. Throws Error(kBadInput) when it is none of these, or a malformed one.
Report inspect_path(const std::string& path);

// Two spaces a level; keys of bytes in decimal units, other whole numbers with thousands separators.
std::string report_text(const Report& report, int level = 0);

}  // namespace dflash::cli
