// SPDX-License-Identifier: MIT
// `dflash export`: a drafter in the layouts that serving engines read (docs/formats.md).
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/command.h"
#include "draft/draft_config.h"
#include "draft/draft_export.h"
#include "draft/draft_weights.h"
#include "draft/provenance.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "model/target_weights.h"
#include "tensor/arena.h"

namespace dflash::cli {
namespace {

struct ExportArguments {
    std::string draft, out, target;
    std::string format = "dflash";
    std::string dtype = "bf16";
};

// Without the target's folder: the facts about it that the drafter's own config repeats.
TargetConfig target_facts(const DraftSpec& spec, const std::string& draft) {
    const Json config = read_json_file(draft + "/config.json");
    TargetConfig target;
    target.hidden = spec.hidden;
    target.vocabulary = spec.vocabulary;
    target.layers = spec.target_layers;
    target.max_positions = spec.max_positions;
    const auto end = json_get_or<std::int64_t>(config, "eos_token_id", -1, draft);
    if (end >= 0) target.end_tokens.push_back(static_cast<std::int32_t>(end));
    target.pad_token = static_cast<std::int32_t>(json_get_or<std::int64_t>(config, "pad_token_id", -1, draft));
    return target;
}

TargetConfig read_target(const DraftSpec& spec, const ExportArguments& arguments) {
    const bool speculators = arguments.format == "speculators";
    if (arguments.target.empty() && (speculators || spec.target_layers == 0)) {
        throw_bad_input("--target DIR is needed here: {}", speculators ? "the speculators layout carries copies of its embedding and head"
                                                                       : "the drafter's config does not say how many layers it has");
    }
    if (arguments.target.empty()) return target_facts(spec, arguments.draft);
    TargetConfig target = read_target_config(arguments.target);
    check_draft_matches_target(spec, target, arguments.draft);
    return target;
}

void check_destination(const std::string& out) {
    check_publishable(out);
    std::error_code error;
    if (std::filesystem::exists(out, error) && !std::filesystem::is_empty(out, error)) {
        throw_bad_input("{}: exists and is not an empty folder; give another --out", out);
    }
}

void write_export(const ExportArguments& arguments, const DraftSpec& spec, const TargetConfig& target, const std::string& folder) {
    const Lifetime whole{0, 0};
    const bool speculators = arguments.format == "speculators";
    std::vector<BufferSpec> buffers = draft_tensor_buffers(spec, "draft", Category::kWeights, whole);
    if (speculators) {
        for (BufferSpec& buffer : target_weight_buffers(target, TargetPart::kEmbeddingAndHead, Device{}, whole))
            buffers.push_back(std::move(buffer));
    }
    const Arena arena(Device{}, make_plan({"export"}, std::move(buffers)));
    const DraftTensors weights = bind_draft_tensors(spec, "draft", arena);
    load_draft(arguments.draft, spec, {weights, {}});
    const DraftProvenance provenance = read_draft_provenance(arguments.draft);
    const SavedAs saved_as = arguments.dtype == "f32" ? SavedAs::kF32 : SavedAs::kBf16;
    HostReader reader(Stream{});
    if (!speculators) return save_draft(folder, spec, target, weights, provenance, reader, saved_as);
    const TargetWeights frozen = bind_target_weights(target, TargetPart::kEmbeddingAndHead, arena);
    load_target_weights(arguments.target, target, TargetPart::kEmbeddingAndHead, frozen);
    save_speculators(folder, {spec, weights, frozen.embedding, frozen.head}, target, provenance, reader, saved_as);
}

int run_export(const ExportArguments& arguments) {
    const DraftSpec spec = read_draft_spec(arguments.draft);
    const TargetConfig target = read_target(spec, arguments);
    check_destination(arguments.out);
    warn_about_serving(spec);
    // What the layout cannot express is refused before anything is written.
    arguments.format == "speculators" ? draft_spec_to_speculators_json(spec, target) : draft_spec_to_config_json(spec, target);
    const std::string out = std::filesystem::path(arguments.out + "/").parent_path().string();
    const std::string staging = out + ".partial";
    std::filesystem::remove_all(staging);
    try {
        write_export(arguments, spec, target, staging);
        publish_folder(staging, out);
    } catch (...) {
        std::error_code ignored;
        std::filesystem::remove_all(staging, ignored);
        throw;
    }
    const auto bytes = static_cast<double>(std::filesystem::file_size(out + "/model.safetensors"));
    fmt::print("{}: {} layout, {}, {} layers, {:.1f} MB of weights\n", out, arguments.format, arguments.dtype, spec.num_layers(),
               bytes / 1e6);
    return 0;
}

}  // namespace

void add_export_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand("export", "writes a drafter in a layout that serving engines read");
    auto arguments = std::make_shared<ExportArguments>();
    command->add_option("--draft", arguments->draft, "the drafter's folder, e.g. a run's draft/")->required();
    command->add_option("--out", arguments->out, "folder to make")->required();
    command
        ->add_option("--format", arguments->format, "dflash (vLLM, SGLang) or speculators (with copies of the target's embedding and head)")
        ->check(CLI::IsMember({"dflash", "speculators"}))
        ->capture_default_str();
    command->add_option("--dtype", arguments->dtype, "bf16, as published, or f32")
        ->check(CLI::IsMember({"bf16", "f32"}))
        ->capture_default_str();
    command->add_option("--target", arguments->target, "the target's folder: the drafter is checked against it; needed for speculators");
    command->footer(
        "Example:\n  dflash export --draft run/draft --out served/draft\n"
        "  dflash export --draft run/draft --target fixtures/tiny-qwen3 --out served/draft --format speculators");
    command->callback([&run, arguments] { run = [arguments] { return run_export(*arguments); }; });
}

}  // namespace dflash::cli
