// SPDX-License-Identifier: MIT
#include <chrono>
#include <cmath>
#include <cstring>
#include <set>

#include "base/byte_size.h"
#include "base/error.h"
#include "base/log.h"
#include "io/safetensors.h"
#include "io/text.h"
#include "model/checkpoint_names.h"
#include "model/target_weights.h"
#include "model/tensor_loader.h"
#include "model/weight_table.h"

namespace dflash {

namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + "]";
}

// Equal, or equal but for a dimension of 1 inside (the convolution is stored as [channels, 1, K]).
bool shape_matches(const std::vector<std::int64_t>& on_disk, const WeightDecl& decl) {
    std::vector<std::int64_t> dims;
    for (int i = 0; i < decl.shape.rank(); ++i) dims.push_back(decl.shape[i]);
    if (on_disk == dims) return true;
    if (!decl.name.ends_with("conv1d.weight") || on_disk.size() != 3) return false;
    return on_disk == std::vector<std::int64_t>{dims[0], 1, dims[1]} || on_disk == std::vector<std::int64_t>{dims[0], dims[1], 1};
}

constexpr double kNearOne = 0.3;

struct Found {
    const WeightDecl* decl;
    const SafetensorsEntry* entry;
};

[[noreturn]] void throw_no_head(const SafetensorsFolder& checkpoint, const std::string& head) {
    throw_bad_input(
        "{}: config.json says tie_word_embeddings = false, but no shard holds {}: set it to true if this model shares its "
        "embedding with its head, or complete the checkpoint",
        checkpoint.folder(), head);
}

// Every tensor of the table with the right shape, or one error that lists all faults.
std::vector<Found> find_tensors(const SafetensorsFolder& checkpoint, const CheckpointNames& names, const std::vector<WeightDecl>& table) {
    std::vector<Found> found;
    std::vector<std::string> absent, misshapen;
    for (const WeightDecl& decl : table) {
        const std::string name = names.in_file(decl.name);
        const SafetensorsEntry* entry = checkpoint.find(name);
        if (entry == nullptr) {
            absent.push_back(name);
        } else if (!shape_matches(entry->shape, decl)) {
            misshapen.push_back(fmt::format("{} is {}, expected {}", name, shape_text(entry->shape), decl.shape.to_string()));
        } else {
            found.push_back({&decl, entry});
        }
    }
    if (absent.size() == 1 && absent[0] == names.in_file(kHeadName)) throw_no_head(checkpoint, absent[0]);
    if (!absent.empty()) {
        throw_bad_input("{}: {} tensors that config.json asks for are missing: {}", checkpoint.folder(), absent.size(),
                        joined_names(absent, 1000));
    }
    if (!misshapen.empty()) {
        throw_bad_input("{}: {} tensors do not have the shape that config.json gives: {}", checkpoint.folder(), misshapen.size(),
                        joined_names(misshapen, 1000));
    }
    return found;
}

// A head beside a tied config may only be a copy of the embedding.
void check_tied_head(const SafetensorsFolder& checkpoint, const CheckpointNames& names, const TargetConfig& config) {
    if (!config.tied_head) return;
    const SafetensorsEntry* head = checkpoint.find(names.in_file(kHeadName));
    const SafetensorsEntry* embedding = checkpoint.find(names.in_file(kEmbeddingName));
    if (head == nullptr || embedding == nullptr) return;
    const bool is_copy =
        head->dtype == embedding->dtype && head->shape == embedding->shape && std::memcmp(head->data, embedding->data, head->bytes) == 0;
    if (!is_copy) {
        throw_bad_input(
            "{}: config.json says tie_word_embeddings = true, but {} differs from {}: set it to false if this model has a head "
            "of its own, or remove the head",
            checkpoint.folder(), head->name, embedding->name);
    }
}

// Counts by group what is not loaded.
void count_the_rest(const SafetensorsFolder& checkpoint, const CheckpointNames& names, const TargetConfig& config, std::int64_t num_layers,
                    const std::vector<Found>& loaded, TargetLoadReport& report) {
    std::set<std::string> used;
    for (const Found& found : loaded) used.insert(found.entry->name);
    for (const std::string& name : checkpoint.names()) {
        if (used.count(name) != 0) continue;
        std::int64_t layer = -1;
        const TensorGroup group = names.group(name, layer);
        if (group == TensorGroup::kVision) {
            ++report.skipped_vision;
        } else if (group == TensorGroup::kMtp) {
            ++report.skipped_mtp;
        } else if (group == TensorGroup::kLayer && layer >= num_layers && layer < config.layers) {
            ++report.skipped_unused_layers;
        } else if (group != TensorGroup::kHead) {  // a head that is not used was found to be a copy of the embedding
            report.unexpected.push_back(name);
        }
    }
}

// Norms of the hybrid family store their offset from one: a checkpoint in which the one was already added gives garbage.
void check_norm_offsets(const SafetensorsFolder& checkpoint, const std::vector<Found>& loaded, TargetLoadReport& report) {
    double sum = 0;
    std::int64_t count = 0;
    for (const Found& found : loaded) {
        if (!found.decl->zero_centred) continue;
        const HostBuffer norm(DType::kF32, found.decl->shape);
        copy_entry_to_f32(*found.entry, checkpoint.file_of(*found.entry).path(), norm);
        for (std::int64_t i = 0; i < norm.tensor().elements(); ++i) sum += static_cast<double>(norm.tensor().f32()[i]);
        count += norm.tensor().elements();
    }
    if (count == 0) return;
    const double mean = sum / static_cast<double>(count);
    if (std::abs(mean - 1) < kNearOne) {
        report.warnings.push_back(fmt::format(
            "the norm weights average {:.2f}; this model family stores them as offsets from one: was one already added to them?", mean));
    }
}

// Says now and then how much of a long load is done.
class LoadProgress {
public:
    LoadProgress(std::string folder, const std::vector<Found>& tensors) : folder_(std::move(folder)) {
        for (const Found& found : tensors) total_ += found.entry->bytes;
    }
    void add(std::size_t bytes) {
        done_ += bytes;
        const auto now = Clock::now();
        if (now - told_ < kInterval || done_ == total_) return;
        told_ = now;
        const double rate = static_cast<double>(done_) / std::chrono::duration<double>(now - start_).count();
        log_info("[target] {}: {} of {} loaded, {}/s, {:.0f} s left", folder_, format_bytes(done_), format_bytes(total_),
                 format_bytes(static_cast<std::size_t>(rate)), static_cast<double>(total_ - done_) / rate);
    }

private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::seconds kInterval{5};
    std::string folder_;
    std::size_t total_ = 0, done_ = 0;
    Clock::time_point start_ = Clock::now();
    Clock::time_point told_ = start_;
};

void copy_tensors(const std::string& folder, const SafetensorsFolder& checkpoint, const std::vector<Found>& tensors, Device device) {
    TensorLoader loader(device);
    LoadProgress progress(folder, tensors);
    for (const auto& [decl, entry] : tensors) {
        const SafetensorsFile& file = checkpoint.file_of(*entry);
        loader.load(*entry, file.path(), *decl->tensor);
        file.drop_pages();
        progress.add(entry->bytes);
    }
    loader.finish();
}

// A checkpoint whose tensors were all found, and what else is in it.
struct Survey {
    std::vector<Found> found;
    TargetLoadReport report;
};
Survey survey_checkpoint(const SafetensorsFolder& checkpoint, const TargetConfig& config, const std::vector<WeightDecl>& table,
                         std::int64_t num_layers) {
    const CheckpointNames names(checkpoint);
    Survey survey;
    survey.found = find_tensors(checkpoint, names, table);
    TargetLoadReport& report = survey.report;
    report.loaded = static_cast<std::int64_t>(survey.found.size());
    check_tied_head(checkpoint, names, config);
    count_the_rest(checkpoint, names, config, num_layers, survey.found, report);
    if (!report.unexpected.empty()) report.warnings.push_back("unexpected tensors, not used: " + joined_names(report.unexpected));
    for (const auto& [name, shard] : checkpoint.missing()) {  // one that is needed was an error before
        report.warnings.push_back(
            fmt::format("the index names tensor '{}', which {} does not hold; it is not needed", printable(name), printable(shard)));
    }
    return survey;
}

}  // namespace

TargetLoadReport load_target_weights(const std::string& folder, const TargetConfig& config, TargetPart part, const TargetWeights& weights) {
    TargetWeights views = weights;
    const auto num_layers = static_cast<std::int64_t>(views.layers.size());
    DFLASH_CHECK(part == TargetPart::kAll || num_layers == 0, "{} layers where none are wanted", num_layers);
    const std::vector<WeightDecl> table = weight_table(config, views);
    const SafetensorsFolder checkpoint(folder);
    auto [found, report] = survey_checkpoint(checkpoint, config, table, num_layers);
    copy_tensors(folder, checkpoint, found, weights.embedding.device);
    check_norm_offsets(checkpoint, found, report);
    log_info("[target] {}: {} tensors loaded; skipped: {} vision, {} MTP, {} of layers that are not needed", folder, report.loaded,
             report.skipped_vision, report.skipped_mtp, report.skipped_unused_layers);
    for (const std::string& warning : report.warnings) log_warning("[target] {}: {}", folder, warning);
    return report;
}

TargetLoadReport check_target_checkpoint(const std::string& folder, const TargetConfig& config) {
    TargetWeights undefined = undefined_target_weights(config, TargetPart::kAll, -1);
    const std::vector<WeightDecl> table = weight_table(config, undefined);
    return survey_checkpoint(SafetensorsFolder(folder), config, table, config.layers).report;
}

}  // namespace dflash
