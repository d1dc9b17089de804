// SPDX-License-Identifier: MIT
#include "train/step_bench.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "base/error.h"
#include "base/rng.h"
#include "draft/draft_config.h"
#include "draft/draft_model.h"
#include "io/json.h"
#include "tensor/buffer.h"
#include "train/optimizer.h"
#include "train/run_plan.h"

namespace dflash {
namespace {

constexpr std::int64_t kCeilingSize = 2048;
constexpr int kCeilingRepeats = 5;
constexpr int kWarmups = 2;

double timed_ms(const std::function<void()>& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void fill_random(const Tensor& tensor, std::uint64_t seed, double scale) {
    Philox rng(seed, 1);
    float* values = tensor.f32();
    for (std::int64_t i = 0; i < tensor.elements(); ++i) values[i] = static_cast<float>(scale * (2 * rng.next_double() - 1));
}

// The best of the three products of a linear layer, on square matrices.
double ceiling_flops_per_second() {
    const Context context;
    const HostBuffer a(DType::kF32, {kCeilingSize, kCeilingSize});
    const HostBuffer b(DType::kF32, {kCeilingSize, kCeilingSize});
    const HostBuffer c(DType::kF32, {kCeilingSize, kCeilingSize});
    fill_random(a, 1, 1.0);
    fill_random(b, 2, 1.0);
    double best_ms = 1e300;
    for (int i = 0; i < kCeilingRepeats; ++i) {
        best_ms = std::min(best_ms, timed_ms([&] { linear_forward(context, {.x = a, .weight = b, .y = c}); }));
        best_ms = std::min(best_ms, timed_ms([&] { linear_backward_input(context, {.d_y = a, .weight = b, .d_x = c}); }));
        best_ms = std::min(
            best_ms, timed_ms([&] { linear_backward_weight(context, {.d_y = a, .x = b, .d_weight = c, .write = Write::kOverwrite}); }));
    }
    const auto size = static_cast<double>(kCeilingSize);
    return 2 * size * size * size / (best_ms / 1000);
}

DraftSpec spec_of(const BenchShape& shape) {
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

double StepBench::share_of_ceiling() const { return flops.total() / (median_step_ms() / 1000) / ceiling_flops_per_second; }

StepBench run_step_bench(const BenchShape& shape, std::int64_t repeats) {
    const DraftSpec spec = spec_of(shape);
    const TargetConfig target = target_of(shape);
    RunSettings settings;
    settings.features = "random";
    settings.token_budget = shape.tokens;
    settings.max_anchors = shape.anchors;
    settings.weighting = "decay";
    const RunPlan run = make_run_plan(target, spec, settings);
    const Arena arena(Device{}, run.plan);
    Context context;
    context.bind_workspace(arena.tensor(kWorkspaceBuffer));
    linear_prepare(context, run.linears);

    const TargetWeights weights = bind_target_weights(target, run.target_part, arena, run.target_layers);
    const DraftModel model = {spec, bind_draft_tensors(spec, kDraftWeightPrefix, arena), weights.embedding, weights.head};
    fill_random(weights.embedding, 3, 0.05);
    fill_random(weights.head, 4, 0.05);
    initialise_draft(model.weights, 5);
    const TargetFeatures features = {.taps = arena.tensor("target.features.taps"), .final_state = {}};
    const PackedBatch batch = batch_of(shape);
    Optimizer optimizer(spec, model.weights, arena);
    optimizer.zero_moments(context);
    DraftStep step(spec, run.draft_step, arena);
    AnchorSet anchors;
    draw_anchors(batch, spec, {.max_anchors = shape.anchors, .seed = 9}, {}, anchors);

    StepBench bench;
    bench.planned_bytes = arena.bytes();
    bench.flops = count_step_flops(spec, shape.tokens, anchors);
    bench.phases = {{"forward", {}}, {"loss", {}}, {"backward", {}}, {"optimizer", {}}};
    for (std::int64_t i = -kWarmups; i < repeats; ++i) {
        fill_random(features.taps, 6, 1.0);  // the features' memory is free for others after backward
        const double ms[] = {
            timed_ms([&] { step.forward(context, model, batch, features, anchors); }), timed_ms([&] {
                step.clear_sums(context);
                step.loss(context, model, features, anchors, weights.head, true);
            }),
            timed_ms([&] { step.backward(context, model, features, anchors, optimizer.gradients(), {}, Write::kOverwrite); }),
            timed_ms([&] { optimizer.update(context, {.lr = 1e-4, .max_grad_norm = 1, .step = i + kWarmups + 1}, step.sums()); })};
        if (i < 0) continue;
        for (std::size_t phase = 0; phase < bench.phases.size(); ++phase) bench.phases[phase].ms.push_back(ms[phase]);
        bench.step_ms.push_back(ms[0] + ms[1] + ms[2] + ms[3]);
    }
    bench.ceiling_flops_per_second = ceiling_flops_per_second();
    return bench;
}

}  // namespace dflash
