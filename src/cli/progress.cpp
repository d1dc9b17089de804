// SPDX-License-Identifier: MIT
#include "cli/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "base/log.h"
#include "cli/progress_line.h"

namespace dflash::cli {

namespace {

std::string step_text(const StepMetrics& m) {
    return fmt::format(
        "step {}/{}  loss {:.4f}  accepted {:.2f} (estimate)  lr {:.2e}  norm {:.2f}  anchors {}/{}  {:.0f} tokens/s  {} left", m.step,
        m.total_steps, m.loss, m.estimated_acceptance_length, m.lr, m.gradient_norm, m.anchors_used, m.anchors_eligible,
        m.tokens_per_second, format_duration(m.seconds_left));
}

std::string bar_text(const StepMetrics& m) {
    constexpr std::int64_t kWidth = 20;
    const std::int64_t done = m.total_steps == 0 ? kWidth : kWidth * m.step / m.total_steps;
    return "[" + std::string(static_cast<std::size_t>(done), '#') + std::string(static_cast<std::size_t>(kWidth - done), '.') + "] ";
}

}  // namespace

TrainProgress::TrainProgress(std::int64_t log_every) : log_every_(log_every), terminal_(isatty(STDERR_FILENO) == 1) {}

TrainProgress::~TrainProgress() { end_bar(); }

void TrainProgress::end_bar() {
    if (bar_open_) std::fputc('\n', stderr);
    bar_open_ = false;
}

void TrainProgress::step(const StepMetrics& metrics) {
    if (terminal_) {
        fmt::print(stderr, "\r{}{}\033[K", bar_text(metrics), step_text(metrics));
        std::fflush(stderr);
        bar_open_ = true;
    } else if (metrics.step % log_every_ == 0 || metrics.step == 1 || metrics.step == metrics.total_steps) {
        log_info("[train] {}", step_text(metrics));
    }
}

void TrainProgress::evaluation(const EvalMetrics& m) {
    end_bar();
    std::string text = fmt::format("[eval] step {}", m.step);
    if (m.has_validation) text += fmt::format("  validation loss {:.4f}", m.validation_loss);
    if (m.has_decoding) text += fmt::format("  {:.3f} tokens a verify step over {} prompts", m.acceptance_length, m.prompts);
    log_info("{}  ({:.1f} s)", text, m.eval_ms / 1000);
}

}  // namespace dflash::cli
