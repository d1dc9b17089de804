// SPDX-License-Identifier: MIT
#include "generate/decoding_setup.h"

#include <iterator>
#include <utility>

#include "base/byte_size.h"
#include "base/log.h"
#include "draft/provenance.h"
#include "io/json.h"
#include "tensor/device_memory.h"
#include "tensor/working_dtype.h"

namespace dflash {
namespace {

constexpr const char* kDraftPrefix = "draft.weight";
constexpr const char* kWorkspace = "workspace";

void append(std::vector<BufferSpec>& to, std::vector<BufferSpec> from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

void check_draft_provenance(const std::string& draft_folder, const std::string& target_folder, bool allow) {
    const Json training = read_draft_provenance(draft_folder).training;
    const auto trained_for = json_get_or<std::string>(training, "target_fingerprint", "", draft_folder + "/training.json");
    if (trained_for.empty() || trained_for == target_fingerprint(target_folder)) return;
    if (!allow) {
        throw_bad_input("drafter {} was trained for another target than {}: give that target, or --allow-target-mismatch", draft_folder,
                        target_folder);
    }
    log_warning("[generate] drafter {} was trained for another target than {}: fewer drafts will be accepted", draft_folder, target_folder);
}

DecodingSetup::DecodingSetup(const DecodingOptions& options) : context_(options.device) {
    target_ = read_target_config(options.target);
    if (!options.draft.empty()) {
        draft_.emplace();
        draft_->spec = read_draft_spec(options.draft);
        check_draft_matches_target(draft_->spec, target_, options.draft);
        check_draft_provenance(options.draft, options.target, options.allow_target_mismatch);
    }
    allocate(options);
    load(options);
    generator_ = std::make_unique<Generator>(target_, target_weights_, draft(), options.generator, *arena_);
}

void DecodingSetup::allocate(const DecodingOptions& options) {
    const DraftSpec* spec = draft_ ? &draft_->spec : nullptr;
    const Lifetime always;
    const DType working = working_dtype(options.device);
    std::vector<BufferSpec> buffers = target_weight_buffers(target_, TargetPart::kAll, options.device, always);
    if (spec != nullptr) append(buffers, draft_tensor_buffers(*spec, kDraftPrefix, Category::kWeights, always, working, working));
    append(buffers, generator_buffers(target_, spec, options.generator, always, always));
    const std::size_t workspace = generator_workspace_bytes(target_, spec, options.generator);
    buffers.push_back({kWorkspace, DType::kU8, {static_cast<std::int64_t>(workspace)}, Category::kWorkspace, always});

    const Plan plan = make_plan({"decode"}, std::move(buffers));
    const std::size_t available = available_memory_bytes(options.device);
    if (available > 0 && plan.arena_bytes > available) {
        throw_bad_input("decoding needs {} for weights and caches, {} are available: give shorter prompts or a lower --max-new-tokens",
                        format_bytes(plan.arena_bytes), format_bytes(available));
    }
    arena_ = std::make_unique<Arena>(options.device, plan);
    context_.bind_workspace(arena_->tensor(kWorkspace));
    linear_prepare(context_, generator_linears(target_, spec, options.generator));
}

void DecodingSetup::load(const DecodingOptions& options) {
    target_weights_ = bind_target_weights(target_, TargetPart::kAll, *arena_);
    load_target_weights(options.target, target_, TargetPart::kAll, target_weights_);
    if (!draft_) return;
    draft_->weights = bind_draft_tensors(draft_->spec, kDraftPrefix, *arena_);
    draft_->embedding = target_weights_.embedding;
    draft_->head = target_weights_.head;
    if (options.untrained_seed) {
        initialise_draft({draft_->weights, {}}, *options.untrained_seed);
    } else {
        load_draft(options.draft, draft_->spec, {draft_->weights, {}});
        HostReader reader(context_.stream());
        check_draft_copies(options.draft, draft_->spec, draft_->embedding, draft_->head, reader);
    }
}

}  // namespace dflash
