// SPDX-License-Identifier: MIT
// Small real runs on the bundled targets: a temporary folder, a few chats, settings that take a second.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "support/temporary_folder.h"
#include "train/run_settings.h"

namespace dflash::testing {

inline std::string fixture(const std::string& name) { return std::string(DFLASH_FIXTURES) + "/" + name; }

// Rows [begin, begin + count) of a bundled chat file.
inline void copy_rows(const std::string& from, std::int64_t begin, std::int64_t count, const std::string& to) {
    std::ifstream in(fixture("data/" + from));
    std::ofstream out(to);
    std::string line;
    for (std::int64_t row = 0; std::getline(in, line); ++row) {
        if (row >= begin && row < begin + count) out << line << "\n";
    }
}

inline void prepare_rows(const std::string& target, const std::string& from, std::int64_t begin, std::int64_t count,
                         const TemporaryFolder& folder, const std::string& name, std::int64_t max_length = 128) {
    const std::string rows = folder.file(name + ".jsonl");
    copy_rows(from, begin, count, rows);
    prepare_dataset({.inputs = {rows}, .target = target, .out = folder.file(name), .chat_template = {}, .max_length = max_length});
}

// 20 steps over a few chats, one thread, a checkpoint and metrics a step; data/ and val-data/ are made in `folder`.
inline RunSettings small_run(const std::string& target_name, const TemporaryFolder& folder, const std::string& out,
                             const char* device = "cpu") {
    const std::string target = fixture(target_name);
    if (!std::filesystem::exists(folder.file("data"))) {
        prepare_rows(target, "regen_train.jsonl", 0, 24, folder, "data");
        prepare_rows(target, "chat_heldout.jsonl", 0, 4, folder, "val-data");
    }
    RunSettings s;
    s.target = target;
    s.data = folder.file("data");
    s.out = folder.file(out);
    s.steps = 20;
    s.token_budget = 200;
    s.max_anchors = 16;
    s.block_size = 6;
    s.draft_layers = 2;
    s.loss_chunk = 64;
    s.lr = 2e-3;
    s.warmup_ratio = 0.2;
    s.accumulate = 2;
    s.eval_every = 0;
    s.save_every = 1;
    s.keep = 3;
    s.seed = 3;
    s.threads = 1;
    s.device = device;
    s.log_every = 1;
    s.eval_count = 2;
    s.eval_new_tokens = 16;
    return s;
}

inline std::vector<std::string> file_lines(const std::string& path) {
    std::ifstream in(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

}  // namespace dflash::testing
