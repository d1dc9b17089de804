// SPDX-License-Identifier: MIT
// What is measured now and then while training: the loss on held-out micro-batches, and the acceptance length of real decoding on a few
// held-out prompts. Reads weights and writes none; anchors depend on counters alone, so training goes on as if it had not happened.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "generate/generate.h"
#include "target/features.h"
#include "train/metrics.h"
#include "train/step.h"

namespace dflash {

constexpr std::int64_t kMaxValidationBatches = 16;  // of an evaluation: the first ones of one fixed order

struct EvaluationSources {
    FeatureSource* validation = nullptr;  // null: no validation loss
    Generator* generator = nullptr;       // null: no decoding
    const std::vector<std::vector<std::int32_t>>* prompts = nullptr;
};

class Evaluation {
public:
    // `end_tokens` are the target's; `max_tokens` is the generator's capacity.
    Evaluation(const EvaluationSources& sources, StepRunner& runner, const std::vector<std::int32_t>& end_tokens,
               std::int64_t max_new_tokens, std::int64_t max_tokens);
    bool has_anything() const { return sources_.validation != nullptr || decodes(); }
    // Stops early, with what was measured so far left out, when `stop` says so: then `finished` is false.
    struct Result {
        EvalMetrics metrics;
        bool finished = true;
    };
    Result run(const Context& context, std::int64_t step, const std::function<bool()>& stop);

private:
    bool decodes() const { return sources_.generator != nullptr && !sources_.prompts->empty(); }
    void validate(const Context& context, EvalMetrics& metrics);
    bool decode(const Context& context, const std::function<bool()>& stop, EvalMetrics& metrics);

    EvaluationSources sources_;
    StepRunner& runner_;
    GenerateSettings generate_;
    std::int64_t max_tokens_;
};

}  // namespace dflash
