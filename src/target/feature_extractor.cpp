// SPDX-License-Identifier: MIT
#include "target/feature_extractor.h"

#include <algorithm>
#include <optional>

#include "base/bf16.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "kernels/log_sum_exp.h"
#include "target/target_model.h"
#include "tensor/arena.h"
#include "tensor/buffer.h"

namespace dflash {
namespace {

constexpr std::int64_t kLogitRows = 128;
constexpr const char* kLogits = "target.features.logits";
constexpr const char* kBest = "target.features.best";
constexpr const char* kLogSumExp = "target.features.logsumexp";
constexpr const char* kWorkspace = "target.features.workspace";

// Rows of device memory as f32 on the host. On the CPU they are that already.
class HostCopy {
public:
    Tensor of(const Context& context, const Tensor& rows) {
        if (!rows.defined() || context.device().type == DeviceType::kCpu) return rows;
        DFLASH_CHECK(rows.dtype == DType::kBF16, "features are {} on this device, expected bf16", dtype_name(rows.dtype));
        bits_.resize(static_cast<std::size_t>(rows.elements()));
        values_.resize(bits_.size());
        context.download(rows, bits_.data());
        std::transform(bits_.begin(), bits_.end(), values_.begin(), bf16_to_float);
        return {values_.data(), DType::kF32, rows.shape, {}};
    }

private:
    std::vector<std::uint16_t> bits_;
    std::vector<float> values_;
};

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
    HostCopy taps, final_state;
    std::vector<float> logsumexp;
    std::vector<std::int32_t> best;

    explicit Impl(Device device) : context(device) {}
    void measure_logits(const Tensor& states);
};

FeatureExtractor::FeatureExtractor(const std::string& target_folder, const FeatureRequest& request, std::int64_t max_tokens, Device device)
    : impl_(std::make_unique<Impl>(device)) {
    Impl& m = *impl_;
    m.target = read_target_config(target_folder);
    m.request = request;
    check_feature_request(request, m.target);
    const TargetForwardSettings settings{max_tokens, request.layers, request.want_final || request.want_logits, device};
    const std::int64_t layers = settings.layers_to_run(m.target);
    const Lifetime always{0, 0};

    std::vector<BufferSpec> buffers = target_weight_buffers(m.target, TargetPart::kAll, device, always, layers);
    const std::vector<BufferSpec> forward = target_forward_buffers(m.target, settings, always, always, always);
    buffers.insert(buffers.end(), forward.begin(), forward.end());
    std::vector<LinearShape> linears = target_forward_linears(m.target, settings);
    if (request.want_logits) {
        buffers.push_back({kLogits, DType::kF32, {kLogitRows, m.target.vocabulary}, Category::kTarget, always});
        buffers.push_back({kBest, DType::kI32, {kLogitRows}, Category::kTarget, always});
        buffers.push_back({kLogSumExp, DType::kF32, {kLogitRows}, Category::kTarget, always});
        linears.push_back({kLogitRows, m.target.hidden, m.target.vocabulary});
    }
    const std::size_t workspace = std::max(linear_workspace_bytes(device, linears), target_forward_workspace_bytes(m.target, settings));
    buffers.push_back({kWorkspace, DType::kU8, {static_cast<std::int64_t>(workspace)}, Category::kWorkspace, always});

    m.arena = std::make_unique<Arena>(device, make_plan({"features"}, buffers));
    m.context.bind_workspace(m.arena->tensor(kWorkspace));
    linear_prepare(m.context, linears);
    m.weights = bind_target_weights(m.target, TargetPart::kAll, *m.arena, layers);
    load_target_weights(target_folder, m.target, TargetPart::kAll, m.weights);
    m.model.emplace(m.target, m.weights, settings, *m.arena);
}

FeatureExtractor::~FeatureExtractor() = default;

const TargetConfig& FeatureExtractor::target() const { return impl_->target; }

void FeatureExtractor::Impl::measure_logits(const Tensor& states) {
    const std::int64_t rows = states.rows();
    logsumexp.resize(static_cast<std::size_t>(rows));
    best.resize(static_cast<std::size_t>(rows));
    for (std::int64_t begin = 0; begin < rows; begin += kLogitRows) {
        const std::int64_t count = std::min(kLogitRows, rows - begin);
        const Tensor logits = arena->tensor(kLogits).slice_rows(0, count);
        const Tensor largest = arena->tensor(kBest).slice_rows(0, count);
        const Tensor sums = arena->tensor(kLogSumExp).slice_rows(0, count);
        linear_forward(context, {states.slice_rows(begin, count), weights.head, logits});
        argmax_rows(context, logits, largest);
        log_sum_exp_rows(context, logits, sums);
        context.download(largest, best.data() + begin);
        context.download(sums, logsumexp.data() + begin);
    }
}

DocumentFeatures FeatureExtractor::run(std::span<const std::int32_t> ids) {
    Impl& m = *impl_;
    make_single_document(ids, m.batch);
    DocumentFeatures result;
    const TargetFeatures states = m.model->forward(m.context, m.batch);
    result.states = {m.taps.of(m.context, states.taps), m.final_state.of(m.context, states.final_state)};
    if (m.request.want_logits) {
        m.measure_logits(states.final_state);
        result.logsumexp = m.logsumexp;
        result.best = m.best;
    }
    return result;
}

}  // namespace dflash
