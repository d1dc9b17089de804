// SPDX-License-Identifier: MIT
#include "train/step_bench.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"
#include "base/rng.h"
#include "draft/draft_config.h"
#include "draft/draft_model.h"
#include "io/json.h"
#include "kernels/anchor_attention.h"
#include "kernels/stopwatch.h"
#include "tensor/device_memory.h"
#include "train/attention_tuning.h"
#include "train/optimizer.h"
#include "train/run_plan.h"
#include "train/synthetic.h"

namespace dflash {
namespace {

constexpr int kWarmups = 2;

// A target of which only embedding and head matter.
TargetConfig target_of(const BenchShape& shape) {
    TargetConfig target;
    target.hidden = shape.hidden;
    target.intermediate = shape.intermediate;
    target.layers = shape.taps + 3;
    target.vocabulary = shape.vocabulary;
    target.heads = shape.heads;
    target.kv_heads = shape.kv_heads;
    target.head_dim = shape.head_dim;
    target.rotary_dims = shape.head_dim;
    target.rope_theta = 1e6;
    target.rms_norm_eps = 1e-6;
    target.max_positions = shape.tokens + shape.block_size;
    target.layer_kinds.assign(static_cast<std::size_t>(target.layers), TargetLayerKind::kFullAttention);
    return target;
}

// One document, the assistant's throughout.
PackedBatch batch_of(const BenchShape& shape) {
    PackedBatch batch;
    Philox rng(7, 7);
    for (std::int64_t row = 0; row < shape.tokens; ++row) {
        batch.ids.push_back(static_cast<std::int32_t>(rng.next_below(static_cast<std::uint64_t>(shape.vocabulary - 1))));
        batch.loss_mask.push_back(1);
        batch.document.push_back(0);
        batch.position.push_back(static_cast<std::int32_t>(row));
    }
    batch.document_begin = {0, static_cast<std::int32_t>(shape.tokens)};
    batch.row_of_document = {0};
    return batch;
}

}  // namespace

DraftSpec draft_spec_of(const BenchShape& shape) {
    DraftSpec spec;
    spec.block_size = shape.block_size;
    for (std::int64_t i = 0; i < shape.layers; ++i) {
        const bool sliding = shape.window > 0 && i + 1 < shape.layers;
        spec.layers.push_back(sliding ? DraftLayerSpec{DraftLayerKind::kSlidingAttention, shape.window, true} : DraftLayerSpec{});
    }
    for (std::int64_t i = 0; i < shape.taps; ++i) spec.taps.push_back(i);
    spec.hidden = shape.hidden;
    spec.intermediate = shape.intermediate;
    spec.heads = shape.heads;
    spec.kv_heads = shape.kv_heads;
    spec.head_dim = shape.head_dim;
    spec.max_positions = shape.tokens + shape.block_size;
    spec.vocabulary = shape.vocabulary;
    spec.target_layers = shape.taps + 3;
    spec.mask_token = static_cast<std::int32_t>(shape.vocabulary - 1);
    check_draft_spec(spec, "the shape");
    return spec;
}

BenchShape parse_bench_shape(const std::string& json_text, const std::string& where) {
    const Json object = parse_json(json_text, where);
    const auto get = [&](const char* key) {
        const auto value = json_get<std::int64_t>(object, key, where);
        if (value < 1 || value > (std::int64_t{1} << 31))
            throw_bad_input("{}: key '{}' is {}, expected a positive size", where, key, value);
        return value;
    };
    BenchShape shape = {get("hidden"), get("intermediate"), get("heads"), get("kv_heads"), get("head_dim"), get("layers")};
    shape.vocabulary = get("vocabulary");
    shape.tokens = get("tokens");
    shape.anchors = get("anchors");
    shape.block_size = get("block_size");
    shape.taps = json_get_or<std::int64_t>(object, "taps", shape.taps, where);
    shape.window = json_get_or<std::int64_t>(object, "window", shape.window, where);
    return shape;
}

double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const std::size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double StepBench::median_step_ms() const { return median(step_ms); }

double StepBench::share_of_ceiling() const { return flops.total() / (median_step_ms() / 1000) / ceiling.sustained_flops; }

namespace {

// A step's memory, models and data, ready to run.
class BenchStep {
public:
    BenchStep(const BenchShape& shape, const RunSettings& settings)
        : spec_(draft_spec_of(shape)),
          target_(target_of(shape)),
          run_(make_run_plan(target_, spec_, settings)),
          context_(run_.device),
          context_bytes_(used_memory_bytes(run_.device)),
          arena_(run_.device, run_.plan),
          weights_(bind_target_weights(target_, run_.target_part, arena_, run_.target_layers)),
          masters_(bind_draft_masters(spec_, arena_)),
          model_{spec_, masters_.weights, weights_.embedding, weights_.head},
          features_{arena_.tensor("target.features.taps"), {}},
          feature_rows_(context_, features_.taps, 6, 1.0),
          batch_(batch_of(shape)),
          optimizer_(spec_, masters_, arena_),
          step_(spec_, run_.draft_step, arena_),
          anchor_settings_{.max_anchors = shape.anchors, .seed = 9},
          watch_(context_),
          attention_(context_, kAnchorAttention) {
        context_.bind_workspace(arena_.tensor(kWorkspaceBuffer));
        choices_ = choices_for_run(run_.device, attention_keys(spec_, shape.tokens, shape.anchors), nullptr);
        context_.bind_attention(&choices_);
        linear_prepare(context_, run_.linears);
        fill_random(context_, weights_.embedding, 3, 0.05);
        fill_random(context_, weights_.head, 4, 0.05);
        initialise_draft(masters_, 5);
        optimizer_.zero_moments(context_);
        context_.bind_probe(&attention_);
        context_.synchronize();
    }

    // Queues one step; marks its begin, the borders of its phases and its end.
    void run() {
        draw_anchors(batch_, spec_, anchor_settings_, {}, anchors_);
        feature_rows_.lay(context_, features_.taps);  // their memory is free for others after backward
        watch_.mark();
        step_.forward(context_, model_, batch_, features_, anchors_);
        watch_.mark();
        step_.clear_sums(context_);
        step_.loss(context_, model_, features_, anchors_, weights_.head, true);
        watch_.mark();
        step_.backward(context_, model_, features_, anchors_, optimizer_.gradients(), {}, Write::kOverwrite);
        watch_.mark();
        optimizer_.update(context_, {.lr = 1e-4, .max_grad_norm = 1, .step = ++steps_}, step_.sums());
        watch_.mark();
    }

    const Context& context() const { return context_; }
    Stopwatch& watch() { return watch_; }
    OpProbe& attention() { return attention_; }
    void describe(const BenchShape& shape, StepBench& bench) const {
        bench.device = run_.device;
        bench.planned_bytes = arena_.bytes();
        bench.context_bytes = context_bytes_;
        bench.total_bytes = used_memory_bytes(run_.device) - (bench.context_bytes > 0 ? feature_rows_.bytes() : 0);
        bench.flops = count_step_flops(spec_, shape.tokens, anchors_);
        const double norm = optimizer_.gradient_norm(context_);
        if (!std::isfinite(norm)) throw_failed("the step's gradient norm is {}", norm);
    }

private:
    DraftSpec spec_;
    TargetConfig target_;
    RunPlan run_;
    cuda::AttentionChoices choices_;
    Context context_;
    std::size_t context_bytes_;
    Arena arena_;
    TargetWeights weights_;
    DraftMasters masters_;
    DraftModel model_;
    TargetFeatures features_;
    RandomRows feature_rows_;
    PackedBatch batch_;
    Optimizer optimizer_;
    DraftStep step_;
    AnchorSettings anchor_settings_;
    AnchorSet anchors_;
    Stopwatch watch_;
    OpProbe attention_;
    std::int64_t steps_ = 0;
};

constexpr const char* kPhases[] = {"forward", "loss", "backward", "optimizer"};
constexpr std::size_t kMarksPerStep = std::size(kPhases) + 1;

// Splits the marks of `repeats` steps into phases.
void read_times(BenchStep& step, std::int64_t repeats, StepBench& bench) {
    const std::vector<double> ms = step.watch().intervals();
    const std::vector<double> attention = step.attention().watch().intervals();
    const std::size_t attention_each = (attention.size() + 1) / static_cast<std::size_t>(repeats);
    for (const char* name : kPhases) bench.phases.push_back({name, {}});
    for (std::size_t i = 0; i < static_cast<std::size_t>(repeats); ++i) {
        double whole = 0;
        for (std::size_t phase = 0; phase < std::size(kPhases); ++phase) {
            bench.phases[phase].ms.push_back(ms[i * kMarksPerStep + phase]);
            whole += bench.phases[phase].ms.back();
        }
        bench.step_ms.push_back(whole);
        double calls = 0;
        for (std::size_t call = 0; call < attention_each; call += 2) calls += attention[i * attention_each + call];
        bench.attention_ms.push_back(calls);
    }
}

}  // namespace

StepBench run_step_bench(const BenchShape& shape, const RunSettings& wanted, std::int64_t repeats) {
    RunSettings settings = wanted;
    settings.features = "random";
    settings.token_budget = shape.tokens;
    settings.max_anchors = shape.anchors;
    settings.weighting = "decay";
    StepBench bench;
    {
        BenchStep step(shape, settings);
        const auto once = [&] {
            step.watch().clear();
            step.attention().watch().clear();
            step.run();
            double ms = 0;
            for (const double phase : step.watch().intervals()) ms += phase;
            return ms;
        };
        bench.first_step_ms = once();
        for (int i = 1; i < kWarmups; ++i) once();
        if (step.context().device().type == DeviceType::kCuda) load_for(kSettleMs, once);
        step.watch().clear();
        step.attention().watch().clear();
        for (std::int64_t i = 0; i < repeats; ++i) step.run();
        read_times(step, repeats, bench);
        step.describe(shape, bench);
    }
    bench.ceiling = measure_ceiling(bench.device);
    return bench;
}

}  // namespace dflash
