// SPDX-License-Identifier: MIT
// Runs the built program with text on standard input and collects what it prints.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "support/temporary_folder.h"

namespace dflash::testing {

struct ProgramResult {
    int exit_code;  // -1 when a signal ended it
    std::string output;
    std::string errors;
};

// `arguments` as in a shell.
inline ProgramResult run_dflash(const std::string& arguments, const std::string& input = "") {
    const TemporaryFolder folder;
    const auto content = [&](const char* name) {
        std::ifstream file(folder.file(name), std::ios::binary);
        return std::string{std::istreambuf_iterator<char>(file), {}};
    };
    folder.write("in", input);
    const std::string command = std::string(DFLASH_BINARY_DIR "/dflash ") + arguments + " <" + folder.file("in") + " >" +
                                folder.file("out") + " 2>" + folder.file("err");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content("out"), content("err")};
}

}  // namespace dflash::testing
