// SPDX-License-Identifier: MIT
// Where a run keeps its things, and the lock that keeps a second process out:
//   config.json     the resolved settings       metrics.jsonl   a line a step and an evaluation
//   train.log       what stderr showed          draft/          the latest drafter, ready to serve
//   checkpoints/step-N/                         lock            held while a process trains here
#pragma once

#include <cstdint>
#include <string>

namespace dflash {

class RunFolder {
public:
    // Makes the folder when it is not there and takes the lock; Error(kBadInput) when another process holds it.
    explicit RunFolder(const std::string& path);
    ~RunFolder();
    RunFolder(const RunFolder&) = delete;
    RunFolder& operator=(const RunFolder&) = delete;

    const std::string& path() const { return path_; }
    std::string config() const { return path_ + "/config.json"; }
    std::string metrics() const { return path_ + "/metrics.jsonl"; }
    std::string log() const { return path_ + "/train.log"; }
    std::string draft() const { return path_ + "/draft"; }
    std::string checkpoints() const { return path_ + "/checkpoints"; }
    std::string checkpoint(std::int64_t step) const;
    // Whether a run was started here before.
    bool holds_run() const;

private:
    std::string path_;
    int lock_ = -1;
};

}  // namespace dflash
