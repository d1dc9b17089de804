// SPDX-License-Identifier: MIT
#include "target/feature_extractor.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "target/target_model.h"
#include "tensor/arena.h"

namespace dflash {
namespace {

constexpr std::int64_t kLogitRows = 128;
constexpr const char* kLogits = "target.features.logits";
constexpr const char* kBest = "target.features.best";
constexpr const char* kWorkspace = "target.features.workspace";

// In double: sums over hundreds of thousands of words.
float log_sum_exp(const float* z, std::int64_t n) {
    const double largest = static_cast<double>(*std::max_element(z, z + n));
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(z[i]) - largest);
    return static_cast<float>(largest + std::log(sum));
}

void make_single_document(std::span<const std::int32_t> ids, PackedBatch& batch) {
    batch.ids.assign(ids.begin(), ids.end());
    batch.loss_mask.assign(ids.size(), 0);
    batch.document.assign(ids.size(), 0);
    batch.position.resize(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) batch.position[i] = static_cast<std::int32_t>(i);
    batch.document_begin = {0, static_cast<std::int32_t>(ids.size())};
}

}  // namespace

void check_feature_request(const FeatureRequest& request, const TargetConfig& target) {
    if (request.layers.empty() && !request.want_final && !request.want_logits) {
        throw_bad_input("nothing is asked for: name layers, the final state or the logits");
    }
    for (const std::int64_t layer : request.layers) {
        if (layer < -1 || layer >= target.layers) {
            throw_bad_input("layer {} is asked for; the target has layers 0 to {} (and -1, the embedding)", layer, target.layers - 1);
        }
    }
    DFLASH_CHECK(std::adjacent_find(request.layers.begin(), request.layers.end(), std::greater_equal<>()) == request.layers.end(),
                 "layers asked for must be strictly increasing");
}

struct FeatureExtractor::Impl {
    TargetConfig target;
    FeatureRequest request;
    std::unique_ptr<Arena> arena;
    TargetWeights weights;
    Context context;
    std::optional<TargetModel> model;
    PackedBatch batch;
    std::vector<float> logsumexp;
    std::vector<std::int32_t> best;

    void measure_logits(const Tensor& final_state);
};

FeatureExtractor::FeatureExtractor(const std::string& target_folder, const FeatureRequest& request, std::int64_t max_tokens)
    : impl_(std::make_unique<Impl>()) {
    Impl& m = *impl_;
    m.target = read_target_config(target_folder);
    m.request = request;
    check_feature_request(request, m.target);
    const TargetForwardSettings settings{max_tokens, request.layers, request.want_final || request.want_logits};
    const std::int64_t layers = settings.layers_to_run(m.target);
    const Lifetime always{0, 0};

    std::vector<BufferSpec> buffers = target_weight_buffers(m.target, TargetPart::kAll, always, layers);
    const std::vector<BufferSpec> forward = target_forward_buffers(m.target, settings, always, always, always);
    buffers.insert(buffers.end(), forward.begin(), forward.end());
    std::vector<LinearShape> linears = target_forward_linears(m.target, settings);
    if (request.want_logits) {
        buffers.push_back({kLogits, DType::kF32, {kLogitRows, m.target.vocabulary}, Category::kTarget, always});
        buffers.push_back({kBest, DType::kI32, {kLogitRows}, Category::kTarget, always});
        linears.push_back({kLogitRows, m.target.hidden, m.target.vocabulary});
    }
    const std::size_t workspace =
        std::max(linear_workspace_bytes(Device{}, linears), target_forward_workspace_bytes(m.target, settings, Device{}));
    buffers.push_back({kWorkspace, DType::kU8, {static_cast<std::int64_t>(workspace)}, Category::kWorkspace, always});

    m.arena = std::make_unique<Arena>(Device{}, make_plan({"features"}, buffers));
    m.context.bind_workspace(m.arena->tensor(kWorkspace));
    m.weights = bind_target_weights(m.target, TargetPart::kAll, *m.arena, layers);
    load_target_weights(target_folder, m.target, TargetPart::kAll, m.weights);
    m.model.emplace(m.target, m.weights, settings, *m.arena);
}

FeatureExtractor::~FeatureExtractor() = default;

const TargetConfig& FeatureExtractor::target() const { return impl_->target; }

void FeatureExtractor::Impl::measure_logits(const Tensor& final_state) {
    const std::int64_t rows = final_state.rows();
    logsumexp.resize(static_cast<std::size_t>(rows));
    best.resize(static_cast<std::size_t>(rows));
    for (std::int64_t begin = 0; begin < rows; begin += kLogitRows) {
        const std::int64_t count = std::min(kLogitRows, rows - begin);
        const Tensor logits = arena->tensor(kLogits).slice_rows(0, count);
        const Tensor largest = arena->tensor(kBest).slice_rows(0, count);
        linear_forward(context, {final_state.slice_rows(begin, count), weights.head, logits});
        argmax_rows(context, logits, largest);
        std::copy_n(largest.i32(), count, best.begin() + begin);
        const float* z = logits.f32();
        float* out = logsumexp.data() + begin;
#pragma omp parallel for schedule(static)
        for (std::int64_t row = 0; row < count; ++row) out[row] = log_sum_exp(z + row * target.vocabulary, target.vocabulary);
    }
}

DocumentFeatures FeatureExtractor::run(std::span<const std::int32_t> ids) {
    Impl& m = *impl_;
    make_single_document(ids, m.batch);
    DocumentFeatures result;
    result.states = m.model->forward(m.context, m.batch);
    if (m.request.want_logits) {
        m.measure_logits(result.states.final_state);
        result.logsumexp = m.logsumexp;
        result.best = m.best;
    }
    return result;
}

}  // namespace dflash
