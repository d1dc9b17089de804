// SPDX-License-Identifier: MIT
// Text files that are read line by line, such as JSONL.
#pragma once

#include <fstream>
#include <string>

namespace dflash {

// Behind a byte order mark, if there is one. Error(kBadInput), saying which, for an empty name, a folder, a file that is not there or may not be read. `what` names the content: "prompts".
std::ifstream open_line_file(const std::string& path, const std::string& what);

}  // namespace dflash
