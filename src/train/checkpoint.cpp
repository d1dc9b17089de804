// SPDX-License-Identifier: MIT
#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/tensor_loader.h"

namespace dflash {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kStateFile = "state.json";
constexpr const char* kChecksumFile = "checksums.json";

std::string partial_folder(const std::string& path) {
    const fs::path final_path(path);
    return (final_path.parent_path() / ("." + final_path.filename().string() + ".partial")).string();
}

Json state_to_json(const TrainState& state) {
    return {
        {"step", state.step},
        {"epoch", state.epoch},
        {"cursor", state.cursor},
        {"seed", state.seed},
        {"threads", state.threads},
        {"hashes",
         {{"config", state.hashes.config}, {"data", state.hashes.data}, {"target", state.hashes.target}, {"draft", state.hashes.draft}}}};
}

TrainState state_from_json(const Json& object, const std::string& where) {
    TrainState state;
    state.step = json_get<std::int64_t>(object, "step", where);
    state.epoch = json_get<std::int64_t>(object, "epoch", where);
    state.cursor = json_get<std::int64_t>(object, "cursor", where);
    state.seed = json_get<std::int64_t>(object, "seed", where);
    state.threads = json_get<std::int64_t>(object, "threads", where);
    if (!object.contains("hashes")) throw_bad_input("{}: key 'hashes' is missing", where);
    const Json& hashes = object.at("hashes");
    state.hashes = {json_get<std::string>(hashes, "config", where), json_get<std::string>(hashes, "data", where),
                    json_get<std::string>(hashes, "target", where), json_get<std::string>(hashes, "draft", where)};
    return state;
}

void write_optimizer(const std::string& path, const Optimizer& optimizer, HostReader& reader) {
    std::vector<SafetensorsWriter::Declared> declared;
    for (const Optimizer::State& state : optimizer.state()) {
        std::vector<std::int64_t> shape;
        for (int i = 0; i < state.weight.shape.rank(); ++i) shape.push_back(state.weight.shape[i]);
        for (const char* part : {".master", ".m"}) declared.push_back({state.name + part, "F32", shape});
        if (state.v.defined()) declared.push_back({state.name + ".v", "F32", shape});
    }
    SafetensorsWriter writer(path, declared);
    for (const Optimizer::State& state : optimizer.state()) {
        const auto write_as = [&](const char* part) {
            return [&writer, name = state.name + part](const Tensor& values) { writer.write(name, values); };
        };
        reader.read_master(state.weight, state.remainder, write_as(".master"));
        reader.read(state.m, write_as(".m"));
        if (state.v.defined()) reader.read(state.v, write_as(".v"));
    }
    writer.finish();
}

// Sizes and checksums of all files below `folder`, by relative path.
Json checksums_of(const std::string& folder) {
    Json files = Json::object();
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
        const std::string name = fs::relative(entry.path(), folder).string();
        if (!entry.is_regular_file() || name == kChecksumFile) continue;
        files[name] = {{"bytes", entry.file_size()}, {"crc32c", crc32c_file(entry.path().string())}};
    }
    return files;
}

void make_folder(const std::string& path) {
    std::error_code failure;
    fs::create_directories(path, failure);
    if (failure) throw_failed("cannot make {}: {}", path, failure.message());
}

void remove_folder(const std::string& path) {
    std::error_code ignored;
    fs::remove_all(path, ignored);
}

// N of "step-N", or -1.
std::int64_t step_of(const std::string& name) {
    constexpr std::string_view kPrefix = "step-";
    std::int64_t step = -1;
    if (name.rfind(kPrefix, 0) != 0) return -1;
    const auto [end, status] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
    return status == std::errc() && end == name.data() + name.size() ? step : -1;
}

struct Listing {
    std::vector<std::int64_t> steps;     // of complete-looking folders, newest first
    std::vector<std::string> leftovers;  // names of everything else
};
Listing list_checkpoints(const std::string& folder) {
    Listing listing;
    if (!fs::exists(folder)) return listing;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        const std::int64_t step = step_of(name);
        if (step >= 0) {
            listing.steps.push_back(step);
        } else {
            listing.leftovers.push_back(name);
        }
    }
    std::sort(listing.steps.rbegin(), listing.steps.rend());
    std::sort(listing.leftovers.begin(), listing.leftovers.end());
    return listing;
}

// Empty when every recorded file is there and sound, else the reason.
std::string fault_of(const std::string& path) {
    try {
        const Json recorded = read_json_file(path + "/" + kChecksumFile);
        const Json found = checksums_of(path);
        for (const auto& item : recorded.items()) {
            if (!found.contains(item.key())) return fmt::format("{} is missing", item.key());
            if (found.at(item.key()) != item.value()) return fmt::format("{} has another size or checksum", item.key());
        }
        return recorded.contains(kStateFile) && recorded.contains(kOptimizerFile) ? "" : "its checksums.json lists no state";
    } catch (const Error& failure) {
        return failure.what();
    }
}

// What an interrupted earlier save may have left under the same name is replaced.
void write_draft_folder(const std::string& path, const CheckpointSource& source) {
    const std::string partial = partial_folder(path);
    remove_folder(partial);
    make_folder(partial);
    save_draft(partial, source.spec, source.target, source.weights, source.provenance, source.reader);
    publish_folder(partial, path);
}

}  // namespace

void save_checkpoint(const RunFolder& folder, const TrainState& state, const CheckpointSource& source, std::int64_t keep) {
    const std::string path = folder.checkpoint(state.step);
    const std::string partial = partial_folder(path);
    remove_folder(partial);
    try {
        make_folder(partial + "/draft");
        save_draft(partial + "/draft", source.spec, source.target, source.weights, source.provenance, source.reader);
        write_optimizer(partial + "/" + kOptimizerFile, source.optimizer, source.reader);
        write_file_atomically(partial + "/" + kStateFile, state_to_json(state).dump(2) + "\n");
        write_file_atomically(partial + "/" + kChecksumFile, checksums_of(partial).dump(2) + "\n");
        publish_folder(partial, path);
    } catch (const std::exception& failure) {
        remove_folder(partial);
        throw_failed("cannot save step {}: {} (older checkpoints are untouched)", state.step, failure.what());
    }
    write_draft_folder(folder.draft(), source);
    const Listing listing = list_checkpoints(folder.checkpoints());
    for (const std::string& name : listing.leftovers) remove_folder(folder.checkpoints() + "/" + name);
    // Steps beyond this one were passed over when the run was resumed before them.
    std::int64_t kept = 0;
    for (const std::int64_t step : listing.steps) {
        if (step > state.step || ++kept > keep) remove_folder(folder.checkpoint(step));
    }
}

std::optional<FoundCheckpoint> latest_checkpoint(const RunFolder& folder, std::vector<std::string>& skipped) {
    const Listing listing = list_checkpoints(folder.checkpoints());
    for (const std::string& name : listing.leftovers) skipped.push_back(fmt::format("{}: an unfinished save", name));
    for (const std::int64_t step : listing.steps) {
        const std::string path = folder.checkpoint(step);
        const std::string fault = fault_of(path);
        if (fault.empty()) {
            const std::string state = path + "/" + kStateFile;
            return FoundCheckpoint{path, state_from_json(read_json_file(state), state)};
        }
        skipped.push_back(fmt::format("step-{}: {}", step, fault));
    }
    return std::nullopt;
}

void load_checkpoint(const FoundCheckpoint& checkpoint, const Optimizer& optimizer) {
    const SafetensorsFile file(checkpoint.path + "/" + kOptimizerFile);
    TensorLoader loader(optimizer.state().front().weight.device);
    const auto load = [&](const std::string& name, const Tensor& destination, const Tensor& remainder = {}) {
        const SafetensorsEntry* entry = file.find(name);
        if (entry == nullptr) throw_bad_input("{}: tensor '{}' is missing", file.path(), name);
        if (entry->dtype != "F32" || entry->elements() != destination.elements()) {
            throw_bad_input("{}: tensor '{}' is {} with {} elements; this run has {} f32", file.path(), name, entry->dtype,
                            entry->elements(), destination.elements());
        }
        loader.load(*entry, file.path(), destination, remainder);
    };
    for (const Optimizer::State& state : optimizer.state()) {
        load(state.name + ".master", state.weight, state.remainder);
        load(state.name + ".m", state.m);
        if (state.v.defined()) load(state.name + ".v", state.v);
    }
    loader.finish();
    file.drop_pages();
}

}  // namespace dflash
