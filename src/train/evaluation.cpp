// SPDX-License-Identifier: MIT
#include "train/evaluation.h"

#include <algorithm>
#include <chrono>

namespace dflash {

Evaluation::Evaluation(const EvaluationSources& sources, StepRunner& runner, const std::vector<std::int32_t>& end_tokens,
                       std::int64_t max_new_tokens, std::int64_t max_tokens)
    : sources_(sources), runner_(runner), max_tokens_(max_tokens) {
    generate_.max_new_tokens = max_new_tokens;
    generate_.end_tokens = end_tokens;
}

void Evaluation::validate(const Context& context, EvalMetrics& metrics) {
    sources_.validation->seek(0, 0);
    const std::int64_t batches = std::min(kMaxValidationBatches, sources_.validation->batches_in_epoch(0));
    const LossStatistics statistics = runner_.measure(context, *sources_.validation, batches);
    metrics.has_validation = true;
    metrics.validation_loss = statistics.weight_sum == 0 ? 0.0 : statistics.loss_sum / statistics.weight_sum;
    metrics.validation_accuracy = slot_accuracy(statistics);
    metrics.validation_estimated_acceptance_length = statistics.estimated_acceptance_length();
}

bool Evaluation::decode(const Context& context, const std::function<bool()>& stop, EvalMetrics& metrics) {
    std::int64_t committed = 0;
    for (const std::vector<std::int32_t>& prompt : *sources_.prompts) {
        if (stop && stop()) return false;
        GenerateSettings settings = generate_;
        settings.max_new_tokens = std::min(settings.max_new_tokens, max_tokens_ - static_cast<std::int64_t>(prompt.size()));
        const GenerateResult result = sources_.generator->generate(context, prompt, settings, /*use_draft=*/true);
        committed += result.verified_tokens;
        metrics.verify_steps += result.verify_steps;
        ++metrics.prompts;
    }
    metrics.has_decoding = true;
    metrics.acceptance_length =
        metrics.verify_steps == 0 ? 0.0 : static_cast<double>(committed) / static_cast<double>(metrics.verify_steps);
    return true;
}

Evaluation::Result Evaluation::run(const Context& context, std::int64_t step, const std::function<bool()>& stop) {
    const auto start = std::chrono::steady_clock::now();
    Result result;
    result.metrics.step = step;
    if (sources_.validation != nullptr) validate(context, result.metrics);
    if (decodes()) result.finished = decode(context, stop, result.metrics);
    result.metrics.eval_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    return result;
}

}  // namespace dflash
