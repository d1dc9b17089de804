// SPDX-License-Identifier: MIT
#include "target/features_writer.h"

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "base/bf16.h"
#include "base/check.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "model/target_weights.h"
#include "target/features_folder.h"

namespace dflash {
namespace {

const char* dtype_in_file(DType dtype) {
    DFLASH_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "features are stored as f32 or bf16, not {}", dtype_name(dtype));
    return dtype == DType::kF32 ? "F32" : "BF16";
}

std::int64_t tokens_of(const Dataset& data, std::int64_t row) { return std::ssize(data.document(row).ids); }

std::int64_t longest_document(const Dataset& data) {
    std::int64_t longest = 0;
    for (std::int64_t row = 0; row < data.documents(); ++row) longest = std::max(longest, tokens_of(data, row));
    return longest;
}

// The states of one document, as both layouts declare and write them.
void declare_states(const std::string& name, std::int64_t tokens, const FeaturesOutput& output, std::int64_t hidden,
                    std::vector<SafetensorsWriter::Declared>& declared) {
    const char* dtype = dtype_in_file(output.dtype);
    for (const std::int64_t layer : output.request.layers) declared.push_back({hidden_tensor_name(name, layer), dtype, {tokens, hidden}});
    if (output.request.want_final) declared.push_back({final_tensor_name(name), dtype, {tokens, hidden}});
}

class StateWriter {
public:
    StateWriter(const FeaturesOutput& output, std::int64_t hidden) : output_(output), hidden_(hidden) {}
    void write(const std::string& name, const DocumentFeatures& features, SafetensorsWriter& writer) {
        const Tensor& taps = features.states.taps;
        const std::int64_t layers = std::ssize(output_.request.layers);
        for (std::int64_t k = 0; k < layers; ++k) {
            tap_.clear();
            for (std::int64_t row = 0; row < taps.rows(); ++row) {
                const float* begin = taps.f32() + (row * layers + k) * hidden_;
                tap_.insert(tap_.end(), begin, begin + hidden_);
            }
            const Tensor tap{tap_.data(), DType::kF32, {taps.rows(), hidden_}, {}};
            writer.write(hidden_tensor_name(name, output_.request.layers[static_cast<std::size_t>(k)]), tap);
        }
        if (output_.request.want_final) writer.write(final_tensor_name(name), features.states.final_state);
    }

private:
    const FeaturesOutput& output_;
    std::int64_t hidden_;
    std::vector<float> tap_;
};

std::vector<std::string> distinct_ids(const Dataset& data) {
    std::vector<std::string> ids;
    std::unordered_set<std::string> seen;
    for (std::int64_t row = 0; row < data.documents(); ++row) {
        ids.push_back(data.document_id(row));
        if (!seen.insert(ids.back()).second) {
            throw_bad_input("two rows have the id '{}': tensors are named after ids, give each row its own", ids.back());
        }
    }
    return ids;
}

template <typename T>
std::size_t bytes_of(std::span<const T> values) {
    return values.size() * sizeof(T);
}

// Rows of the data set that go into each shard: at least one, then as many as fit.
std::vector<std::int64_t> shard_borders(const Dataset& data, const FeaturesOutput& output, std::int64_t hidden) {
    const std::int64_t states = std::ssize(output.request.layers) + (output.request.want_final ? 1 : 0);
    const std::int64_t token_bytes = states * hidden * static_cast<std::int64_t>(dtype_bytes(output.dtype));
    std::vector<std::int64_t> borders = {0};
    std::int64_t bytes = 0;
    for (std::int64_t row = 0; row < data.documents(); ++row) {
        const std::int64_t more = tokens_of(data, row) * token_bytes;
        if (row > borders.back() && bytes + more > output.shard_bytes) {
            borders.push_back(row);
            bytes = 0;
        }
        bytes += more;
    }
    borders.push_back(data.documents());
    return borders;
}

FeaturesManifest make_manifest(const Dataset& data, const FeaturesOutput& output, std::int64_t hidden) {
    FeaturesManifest manifest;
    manifest.target_fingerprint = target_fingerprint(output.target);
    manifest.data_fingerprint = data.fingerprint();
    manifest.hidden = hidden;
    manifest.layers = output.request.layers;
    manifest.has_final = output.request.want_final;
    manifest.dtype = dtype_name(output.dtype);
    manifest.chat_template = data.chat_template();
    return manifest;
}

// A folder beside the final one that disappears unless it is published.
class StagingFolder {
public:
    explicit StagingFolder(const std::string& final_path) : path_(std::filesystem::path(final_path).lexically_normal().string()) {
        while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
        path_ += ".incomplete";
        std::filesystem::remove_all(path_);
        std::filesystem::create_directories(path_);
    }
    ~StagingFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    StagingFolder(const StagingFolder&) = delete;
    StagingFolder& operator=(const StagingFolder&) = delete;
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

}  // namespace

void write_features_file(const Dataset& data, const FeaturesOutput& output, const FeaturesProgress& progress) {
    const std::vector<std::string> ids = distinct_ids(data);
    FeatureExtractor extractor(output.target, output.request, longest_document(data), output.device);
    const std::int64_t hidden = extractor.target().hidden;
    std::vector<SafetensorsWriter::Declared> declared;
    for (std::int64_t row = 0; row < data.documents(); ++row) {
        const std::string& id = ids[static_cast<std::size_t>(row)];
        const std::int64_t tokens = tokens_of(data, row);
        declared.push_back({id + ".input_ids", "I32", {tokens}});
        declared.push_back({id + ".loss_mask", "U8", {tokens}});
        declare_states(id, tokens, output, hidden, declared);
        if (!output.request.want_logits) continue;
        declared.push_back({id + ".logsumexp", "F32", {tokens}});
        declared.push_back({id + ".argmax", "I32", {tokens}});
    }
    SafetensorsWriter writer(output.out, declared);
    StateWriter states(output, hidden);
    std::int64_t tokens_done = 0;
    for (std::int64_t row = 0; row < data.documents(); ++row) {
        const std::string& id = ids[static_cast<std::size_t>(row)];
        const DocumentView document = data.document(row);
        const DocumentFeatures features = extractor.run(document.ids);
        writer.write(id + ".input_ids", document.ids.data(), bytes_of(document.ids));
        writer.write(id + ".loss_mask", document.loss_mask.data(), bytes_of(document.loss_mask));
        states.write(id, features, writer);
        if (output.request.want_logits) {
            writer.write(id + ".logsumexp", features.logsumexp.data(), bytes_of(features.logsumexp));
            writer.write(id + ".argmax", features.best.data(), bytes_of(features.best));
        }
        progress(row + 1, tokens_done += std::ssize(document.ids));
    }
    writer.finish();
}

std::int64_t write_features_folder(const std::function<void(const std::string&)>& make_data, const FeaturesOutput& output,
                                   const std::function<FeaturesProgress(const Dataset&)>& start_progress) {
    const StagingFolder staging(output.out);
    make_data(features_data_folder(staging.path()));
    const Dataset data(features_data_folder(staging.path()));
    FeatureExtractor extractor(output.target, output.request, longest_document(data), output.device);
    const std::int64_t hidden = extractor.target().hidden;
    FeaturesManifest manifest = make_manifest(data, output, hidden);
    const std::vector<std::int64_t> borders = shard_borders(data, output, hidden);
    const FeaturesProgress progress = start_progress(data);
    StateWriter states(output, hidden);
    std::int64_t tokens_done = 0;
    for (std::size_t shard = 0; shard + 1 < borders.size(); ++shard) {
        std::vector<SafetensorsWriter::Declared> declared;
        for (std::int64_t row = borders[shard]; row < borders[shard + 1]; ++row) {
            declare_states(std::to_string(row), tokens_of(data, row), output, hidden, declared);
        }
        const std::string file = features_shard_name(static_cast<std::int64_t>(shard));
        SafetensorsWriter writer(staging.path() + "/" + file, declared);
        for (std::int64_t row = borders[shard]; row < borders[shard + 1]; ++row) {
            const DocumentView document = data.document(row);
            states.write(std::to_string(row), extractor.run(document.ids), writer);
            manifest.documents.push_back({data.document_id(row), std::ssize(document.ids), static_cast<std::int64_t>(shard)});
            progress(row + 1, tokens_done += std::ssize(document.ids));
        }
        writer.finish();
        manifest.shards.push_back({file, static_cast<std::int64_t>(std::filesystem::file_size(staging.path() + "/" + file))});
    }
    write_file_atomically(features_manifest_path(staging.path()), features_manifest_text(manifest));
    publish_folder(staging.path(), output.out);
    return std::ssize(manifest.shards);
}

}  // namespace dflash
