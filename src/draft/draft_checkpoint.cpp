// SPDX-License-Identifier: MIT
// Drafter folders: reading either layout, writing either layout.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/bf16.h"
#include "base/error.h"
#include "draft/draft_config.h"
#include "draft/draft_export.h"
#include "draft/draft_weights.h"
#include "draft/provenance.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/tensor_loader.h"

namespace dflash {
namespace {

constexpr const char* kEmbedding = "embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

std::string shape_text(const std::vector<std::int64_t>& dims) {
    std::string text = "(";
    for (std::size_t i = 0; i < dims.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(dims[i]);
    return text + ")";
}

std::vector<std::int64_t> dims_of(const Shape& shape) {
    std::vector<std::int64_t> dims;
    for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
    return dims;
}

// Collects what is wrong with a checkpoint, so that one message tells all.
class FaultList {
public:
    explicit FaultList(std::string where) : where_(std::move(where)) {}
    void add(const std::string& fault) { faults_ += (count_++ > 0 ? "; " : "") + fault; }
    void throw_if_any() const {
        if (count_ > 0) throw_bad_input("{}: {}", where_, faults_);
    }

private:
    std::string where_;
    std::string faults_;
    int count_ = 0;
};

const SafetensorsEntry* find_checked(const SafetensorsFolder& files, const std::string& name, const Shape& shape, FaultList& faults) {
    const SafetensorsEntry* entry = files.find(name);
    if (entry == nullptr) {
        faults.add(fmt::format("tensor {} is missing", name));
        return nullptr;
    }
    if (entry->shape != dims_of(shape)) {
        faults.add(fmt::format("tensor {} has shape {}, expected {}", name, shape_text(entry->shape), shape_text(dims_of(shape))));
        return nullptr;
    }
    if (entry->dtype != "F32" && entry->dtype != "BF16" && entry->dtype != "F16") {
        faults.add(fmt::format("tensor {} is of type {}, expected F32, BF16 or F16", name, entry->dtype));
        return nullptr;
    }
    return entry;
}

void refuse_foreign_parts(const std::string& folder, const SafetensorsFolder& files) {
    for (const char* name : {"t2d", "d2t"}) {
        if (files.find(name) != nullptr) {
            throw_bad_input("{}: tensor {} maps a pruned vocabulary, which is not built", folder, name);
        }
    }
    if (std::filesystem::exists(folder + "/mask_embedding.pt")) {
        throw_bad_input("{}: a mask embedding of its own (mask_embedding.pt) is not built", folder);
    }
}

SafetensorsWriter::Declared declare(const std::string& name, const Tensor& tensor, const char* dtype) {
    return {name, dtype, dims_of(tensor.shape)};
}

void write_tensors(const std::string& path, const std::vector<NamedTensor>& tensors, HostReader& reader, SavedAs saved_as) {
    std::vector<SafetensorsWriter::Declared> declared;
    for (const NamedTensor& entry : tensors)
        declared.push_back(declare(entry.name, entry.tensor, saved_as == SavedAs::kF32 ? "F32" : "BF16"));
    SafetensorsWriter writer(path, declared, {{"format", "pt"}});
    for (const NamedTensor& entry : tensors) reader.read(entry.tensor, [&](const Tensor& part) { writer.write(entry.name, part); });
    writer.finish();
}

void write_draft_folder(const std::string& folder, Json config, const std::vector<NamedTensor>& tensors, const DraftProvenance& provenance,
                        HostReader& reader, SavedAs saved_as) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw_failed("cannot make folder {}: {}", folder, error.message());
    if (saved_as == SavedAs::kF32) config["dtype"] = "float32";
    write_tensors(folder + "/model.safetensors", tensors, reader, saved_as);
    if (!provenance.training.empty()) write_file_atomically(folder + "/training.json", provenance.training.dump(2) + "\n");
    write_file_atomically(folder + "/config.json", config.dump(2) + "\n");
}

}  // namespace

void load_draft(const std::string& folder, const DraftSpec& spec, const DraftMasters& masters) {
    const SafetensorsFolder files(folder);
    refuse_foreign_parts(folder, files);
    FaultList faults(folder);
    std::set<std::string> expected;
    std::vector<std::pair<const SafetensorsEntry*, NamedMaster>> found;
    for (const NamedMaster& wanted : named_masters(masters)) {
        expected.insert(wanted.name);
        const SafetensorsEntry* entry = find_checked(files, wanted.name, wanted.weight.shape, faults);
        if (entry != nullptr) found.emplace_back(entry, wanted);
    }
    // Copies of the target's own tensors, which are used from the target instead.
    const Shape words{spec.vocabulary, spec.hidden};
    if (spec.owns_embedding && expected.insert(kEmbedding).second) find_checked(files, kEmbedding, words, faults);
    if (spec.owns_head && expected.insert(kHead).second) find_checked(files, kHead, words, faults);
    for (const std::string& name : files.names()) {
        if (expected.count(name) == 0) faults.add(fmt::format("tensor {} is not part of a DFlash drafter", name));
    }
    faults.throw_if_any();
    TensorLoader loader(masters.weights.fc.device);
    for (const auto& [entry, master] : found) loader.load(*entry, folder, master.weight, master.remainder);
    loader.finish();
    files.drop_pages();
}

namespace {

constexpr std::int64_t kComparedRows = 64;

std::vector<std::uint16_t> as_bf16(const Tensor& values) {
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(values.elements()));
    if (values.dtype == DType::kBF16) {
        std::memcpy(bits.data(), values.data, values.bytes());
    } else {
        std::transform(values.f32(), values.f32() + values.elements(), bits.begin(), float_to_bf16);
    }
    return bits;
}

// One row of an entry, whatever its dtype.
SafetensorsEntry row_of(const SafetensorsEntry& entry, std::int64_t row) {
    SafetensorsEntry part = entry;
    part.shape = {1, entry.shape[1]};
    part.bytes = entry.bytes / static_cast<std::size_t>(entry.shape[0]);
    part.data = entry.data + static_cast<std::size_t>(row) * part.bytes;
    return part;
}

void check_copy(const SafetensorsFolder& files, const std::string& name, const Tensor& original, HostReader& reader) {
    const SafetensorsEntry* entry = files.find(name);
    const std::int64_t rows = original.rows();
    const HostBuffer copied(DType::kF32, {1, original.row_elements()});
    for (std::int64_t i = 0; entry != nullptr && i < std::min(rows, kComparedRows); ++i) {
        const std::int64_t row = i * rows / std::min(rows, kComparedRows);
        copy_entry_to_f32(row_of(*entry, row), files.folder(), copied);
        const std::vector<std::uint16_t> copy = as_bf16(copied);
        reader.read(original.slice_rows(row, 1), [&](const Tensor& part) {
            if (as_bf16(part) == copy) return;
            throw_bad_input("{}: {} differs from the target's (row {}): a drafter with an embedding or head of its own is not built",
                            files.folder(), name, row);
        });
    }
}

}  // namespace

void check_draft_copies(const std::string& folder, const DraftSpec& spec, const Tensor& embedding, const Tensor& head, HostReader& reader) {
    if (!spec.owns_embedding && !spec.owns_head) return;
    const SafetensorsFolder files(folder);
    if (spec.owns_embedding) check_copy(files, kEmbedding, embedding, reader);
    if (spec.owns_head) check_copy(files, kHead, head, reader);
}

void save_draft(const std::string& folder, const DraftSpec& spec, const TargetConfig& target, const DraftTensors& weights,
                const DraftProvenance& provenance, HostReader& reader, SavedAs saved_as) {
    write_draft_folder(folder, draft_spec_to_config_json(spec, target), named_tensors(weights), provenance, reader, saved_as);
}

void save_speculators(const std::string& folder, const DraftModel& model, const TargetConfig& target, const DraftProvenance& provenance,
                      HostReader& reader, SavedAs saved_as) {
    std::vector<NamedTensor> tensors = named_tensors(model.weights);
    tensors.push_back({kEmbedding, model.embedding});
    tensors.push_back({kHead, model.head});
    write_draft_folder(folder, draft_spec_to_speculators_json(model.spec, target), tensors, provenance, reader, saved_as);
}

DraftProvenance read_draft_provenance(const std::string& folder) {
    const std::string path = folder + "/training.json";
    DraftProvenance provenance;
    if (std::filesystem::exists(path)) provenance.training = read_json_file(path);
    if (!provenance.training.is_object()) throw_bad_input("{}: expected a JSON object", path);
    return provenance;
}

}  // namespace dflash
