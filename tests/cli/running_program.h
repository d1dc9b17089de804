// SPDX-License-Identifier: MIT
// Runs the program without a shell, so that arguments may hold anything, and may kill it; and what a refusal looks like.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace dflash::testing {

inline std::string file_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

inline std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

// A running program. Its output goes to files, so that neither side waits for the other.
class Program {
public:
    // `in_child` runs in the new process before the program takes over: limits, ignored signals.
    explicit Program(const std::vector<std::string>& arguments, const std::string& input = "", const std::function<void()>& in_child = {}) {
        const std::string stdin_path = folder_.write("stdin", input);
        std::vector<std::string> words = {DFLASH_BINARY_DIR "/dflash"};
        words.insert(words.end(), arguments.begin(), arguments.end());
        std::vector<char*> argv;
        for (std::string& word : words) argv.push_back(word.data());
        argv.push_back(nullptr);
        process_ = ::fork();
        if (process_ != 0) return;
        redirect(stdin_path, O_RDONLY, STDIN_FILENO);
        redirect(folder_.file("stdout"), O_WRONLY | O_CREAT, STDOUT_FILENO);
        redirect(folder_.file("stderr"), O_WRONLY | O_CREAT, STDERR_FILENO);
        ::setenv("OMP_NUM_THREADS", "1", 1);
        ::setenv("CUDA_VISIBLE_DEVICES", "", 1);  // the same device, the CPU, on every machine
        if (in_child) in_child();
        ::execv(argv[0], argv.data());
        ::_exit(127);
    }
    void kill(int signal = SIGKILL) const { ::kill(process_, signal); }
    ProgramResult wait() {
        int status = 0;
        ::waitpid(process_, &status, 0);
        return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, file_text(folder_.file("stdout")), file_text(folder_.file("stderr"))};
    }

private:
    static void redirect(const std::string& path, int flags, int to) {
        const int file = ::open(path.c_str(), flags, 0600);
        if (file < 0 || ::dup2(file, to) < 0) ::_exit(126);
        ::close(file);
    }
    TemporaryFolder folder_;
    pid_t process_ = 0;
};

inline ProgramResult run_program(const std::vector<std::string>& arguments, const std::string& input = "") {
    return Program(arguments, input).wait();
}

// Exit code 2, nothing on standard output, and exactly one line that says "dflash: ..." with all the fragments.
inline ::testing::AssertionResult refused(const ProgramResult& result, const std::vector<std::string>& fragments) {
    if (result.exit_code != 2) return ::testing::AssertionFailure() << "exit code " << result.exit_code << ": " << result.errors;
    if (!result.output.empty()) return ::testing::AssertionFailure() << "something on standard output: " << result.output;
    std::vector<std::string> lines;
    for (const std::string& line : lines_of(result.errors)) {
        const bool is_log = line.rfind("[", 0) == 0 || line.rfind("warning: [", 0) == 0;
        if (!is_log) lines.push_back(line);
    }
    if (lines.size() != 1 || lines[0].rfind("dflash: ", 0) != 0)
        return ::testing::AssertionFailure() << "not one line of error: " << result.errors;
    for (const std::string& fragment : fragments) {
        if (lines[0].find(fragment) == std::string::npos)
            return ::testing::AssertionFailure() << "'" << fragment << "' is not in: " << lines[0];
    }
    return ::testing::AssertionSuccess();
}

}  // namespace dflash::testing
