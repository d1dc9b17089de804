// SPDX-License-Identifier: MIT
// A memory plan as a picture: a bar a phase, stacked by category, so that one sees what makes the peak.
#pragma once

#include <string>
#include <vector>

#include "tensor/plan.h"

namespace dflash::cli {

// The categories that hold a byte in any phase, in their fixed order.
std::vector<Category> used_categories(const Plan& plan);

// A complete SVG document.
std::string plan_svg(const Plan& plan, const std::string& title);

}  // namespace dflash::cli
