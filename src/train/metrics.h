// SPDX-License-Identifier: MIT
// What a step and an evaluation measured, and metrics.jsonl: one JSON object a line, {"kind": "step", ...} or {"kind": "eval", ...}.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dflash {

struct StepMetrics {
    std::int64_t step = 0, total_steps = 0;
    std::int64_t epoch = 0;
    std::int64_t first_micro_batch = 0;  // of the step, within its epoch, over all ranks
    double loss = 0, lr = 0, gradient_norm = 0;
    std::vector<double> accuracy;  // (W) by slot; slots that are never weighted, or had no label in this step, are -1 (null in the file)
    double estimated_acceptance_length = 0;
    std::int64_t anchors_wanted = 0, anchors_eligible = 0, anchors_used = 0;
    double weight_sum = 0;
    std::int64_t tokens = 0;
    double step_ms = 0, tokens_per_second = 0, seconds_left = 0;
};

struct EvalMetrics {
    std::int64_t step = 0;
    bool has_validation = false;
    double validation_loss = 0;
    double validation_estimated_acceptance_length = 0;
    std::vector<double> validation_accuracy;  // as in StepMetrics
    bool has_decoding = false;
    std::int64_t prompts = 0, verify_steps = 0;
    double acceptance_length = 0;  // pooled over prompts
    double eval_ms = 0;
};

std::string to_json_line(const StepMetrics& metrics);
std::string to_json_line(const EvalMetrics& metrics);

// Appends lines, each on the disk's way at once. Opened at step N (of a resumed run), lines of later steps and a cut last line are dropped.
class MetricsFile {
public:
    MetricsFile(const std::string& path, std::int64_t resumed_step);
    ~MetricsFile();
    MetricsFile(const MetricsFile&) = delete;
    MetricsFile& operator=(const MetricsFile&) = delete;
    void append(const std::string& line);

private:
    std::string path_;
    int file_ = -1;
};

}  // namespace dflash
