// SPDX-License-Identifier: MIT
#include "train/attention_tuning.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "io/json.h"
#include "kernels/anchor_attention.h"
#include "tensor/cuda_runtime.h"
#include "train/attention_workload.h"

namespace dflash {

std::vector<DraftLayerSpec> layer_kinds(const DraftSpec& spec) {
    std::vector<DraftLayerSpec> kinds;
    for (const DraftLayerSpec& layer : spec.layers) {
        if (std::find(kinds.begin(), kinds.end(), layer) == kinds.end()) kinds.push_back(layer);
    }
    return kinds;
}

std::string describe_layer_kind(const DraftLayerSpec& layer) {
    const std::string reach = layer.window > 0 ? fmt::format("window {}", layer.window) : "full";
    return reach + (layer.causal_block ? ", causal blocks" : "");
}

std::string describe_attention(const DraftSpec& spec, Device device) {
    std::string line;
    for (const DraftLayerSpec& layer : layer_kinds(spec)) {
        const auto layers = std::count(spec.layers.begin(), spec.layers.end(), layer);
        line +=
            fmt::format("{}{} {} ({}): {}", line.empty() ? "" : "; ", layers, layers == 1 ? "layer" : "layers", describe_layer_kind(layer),
                        anchor_attention_kernel(device, spec.heads, spec.kv_heads, spec.head_dim, spec.block_size));
    }
    return line;
}

std::vector<cuda::AttentionKey> attention_keys(const DraftSpec& spec, std::int64_t tokens, std::int64_t anchors) {
    std::vector<cuda::AttentionKey> keys;
    for (const DraftLayerSpec& layer : layer_kinds(spec)) {
        for (const cuda::AttentionPass pass : {cuda::AttentionPass::kForward, cuda::AttentionPass::kBackward}) {
            keys.push_back({pass, spec.heads, spec.kv_heads, spec.head_dim, spec.block_size, layer.window, layer.causal_block,
                            cuda::length_bucket(tokens), cuda::length_bucket(anchors)});
        }
    }
    return keys;
}

TuningDevice::TuningDevice(Device device) : TuningDevice("", 0, build_id()) {
    const cuda::DeviceProperties properties = cuda::device_properties(device);
    *this = TuningDevice(properties.name, 10 * properties.compute_major + properties.compute_minor, build_id());
}

TuningDevice::TuningDevice(std::string device_name, int capability, std::string build_of)
    : name(std::move(device_name)),
      compute_capability(capability),
      build(std::move(build_of)),
      forward_(cuda::attention_kernels(capability, cuda::AttentionPass::kForward)),
      backward_(cuda::attention_kernels(capability, cuda::AttentionPass::kBackward)) {}

std::string TuningDevice::cache_key(const cuda::AttentionKey& key) const {
    return fmt::format("build={} device={} ({}.{}) {}", build, name, compute_capability / 10, compute_capability % 10, key.text());
}

const cuda::AttentionKernel* TuningDevice::kernel_of(const cuda::AttentionKey& key, const std::string& id) const {
    for (const cuda::AttentionKernel& kernel : key.pass == cuda::AttentionPass::kForward ? forward_ : backward_) {
        if (id == kernel.id) return &kernel;
    }
    return nullptr;
}

cuda::AttentionChoices remembered_choices(TileCache& cache, const TuningDevice& device, const std::vector<cuda::AttentionKey>& keys) {
    cuda::AttentionChoices choices;
    for (const cuda::AttentionKey& key : keys) {
        const auto legal = [&](const std::string& id) { return device.kernel_of(key, id) != nullptr; };
        if (const auto id = cache.find(device.cache_key(key), legal)) choices.set(key, *device.kernel_of(key, *id));
    }
    return choices;
}

TunedKernel tune_attention(TileCache& cache, const TuningDevice& device, const cuda::AttentionKey& key, const MeasureKernel& measure) {
    constexpr double kWorthIt = 0.98;
    TunedKernel tuned;
    tuned.key = key;
    double best_ms = 0;
    for (const cuda::AttentionKernel& kernel : cuda::attention_kernels(device.compute_capability, key.pass)) {
        const double ms = measure(key, kernel);
        const bool is_default = tuned.ms.empty();
        tuned.ms.emplace_back(kernel, ms);
        if (is_default || ms < best_ms * kWorthIt) {
            tuned.best = kernel;
            best_ms = ms;
        }
    }
    if (tuned.ms.empty()) throw_bad_input("no fused anchor attention for {}", device.cache_key(key));
    tuned.stored = cache.store(device.cache_key(key), tuned.best.id);
    return tuned;
}

double measure_attention(Context& context, const cuda::AttentionKey& key, const cuda::AttentionKernel& kernel) {
    constexpr int kRuns = 20;
    cuda::AttentionChoices choices;
    choices.set(key, kernel);
    AttentionShape shape{.name = key.text(), .context = key.context_bucket, .anchors = key.anchor_bucket, .window = key.window, .seed = 1};
    shape.anchors = std::min(shape.anchors, shape.context - 1);
    shape.causal_block = key.causal_block;
    shape.heads = key.heads;
    shape.kv_heads = key.kv_heads;
    shape.head_dim = key.head_dim;
    shape.block_size = key.block_size;
    const AttentionWorkload workload(context, shape);
    workload.forward();
    context.bind_attention(&choices);
    const double ms = median_ms_of(
        context, [&] { key.pass == cuda::AttentionPass::kForward ? workload.forward() : workload.backward(); }, kRuns);
    context.bind_attention(nullptr);
    return ms;
}

nlohmann::json choices_to_json(const cuda::AttentionChoices& choices) {
    Json object = Json::object();
    for (const auto& [key, kernel] : choices.all()) object[key.text()] = kernel.id;
    return object;
}

cuda::AttentionChoices choices_from_json(const nlohmann::json& object, const TuningDevice& device,
                                         const std::vector<cuda::AttentionKey>& keys) {
    cuda::AttentionChoices choices;
    for (const cuda::AttentionKey& key : keys) {
        const auto found = object.find(key.text());
        if (found == object.end()) continue;
        const cuda::AttentionKernel* kernel = found->is_string() ? device.kernel_of(key, found->get<std::string>()) : nullptr;
        if (kernel != nullptr) {
            choices.set(key, *kernel);
        } else {
            log_warning("[attention] the run used {} for {}, which this device does not have: the default is used", found->dump(),
                        key.text());
        }
    }
    return choices;
}

cuda::AttentionChoices choices_for_run(Device device, const std::vector<cuda::AttentionKey>& keys, const nlohmann::json* recorded) {
    if (device.type == DeviceType::kCpu) return {};
    const TuningDevice here(device);
    if (recorded != nullptr) return choices_from_json(*recorded, here, keys);
    TileCache cache(cache_folder());
    return remembered_choices(cache, here, keys);
}

std::string describe_choices(const cuda::AttentionChoices& choices, Device device) {
    std::string line;
    if (choices.all().empty()) return line;
    const TuningDevice here(device);
    for (const auto& [key, kernel] : choices.all()) {
        if (kernel == cuda::attention_kernels(here.compute_capability, key.pass).front()) continue;
        line += fmt::format("{}{}: {}", line.empty() ? "" : "; ", key.text(), kernel.name);
    }
    return line;
}

}  // namespace dflash
