// SPDX-License-Identifier: MIT
#include "train/draft_choice.h"

#include <algorithm>

#include "base/error.h"
#include "draft/provenance.h"
#include "io/json.h"

namespace dflash {
namespace {

void refuse_difference(const RunSettings& settings, const char* key, const Json& asked, const Json& has) {
    if (!settings.is_given(key) || asked == has) return;
    throw_bad_input("--{} {} differs from the drafter in {}, which has {}: leave the flag out, or start without --init-from", key,
                    asked.dump(), settings.init_from, has.dump());
}

DraftSpec continued_spec(const RunSettings& settings, const std::string& folder, const TargetConfig& target) {
    DraftSpec spec = read_draft_spec(folder);
    check_draft_matches_target(spec, target, folder);
    std::int64_t window = 0;
    for (const DraftLayerSpec& layer : spec.layers) window = std::max(window, layer.window);
    refuse_difference(settings, "block-size", settings.block_size, spec.block_size);
    refuse_difference(settings, "draft-layers", settings.draft_layers, spec.num_layers());
    refuse_difference(settings, "target-layer-ids", settings.target_layer_ids, spec.taps);
    refuse_difference(settings, "mask-token-id", settings.mask_token_id, spec.mask_token);
    refuse_difference(settings, "sliding-window", settings.sliding_window, window);
    if (!spec.draft_to_target.empty()) {
        throw_bad_input("{}: the drafter has a reduced vocabulary, and training one is not built; use a full-vocabulary drafter", folder);
    }
    // Copies of the target's embedding and head are frozen: the target's own serve.
    spec.owns_embedding = false;
    spec.owns_head = false;
    return spec;
}

}  // namespace

DraftSpec choose_draft_spec(const RunSettings& settings, const TargetConfig& target, std::int32_t tokenizer_mask) {
    if (!settings.resumed_draft.empty()) return continued_spec(settings, settings.resumed_draft, target);
    if (!settings.init_from.empty()) return continued_spec(settings, settings.init_from, target);
    DraftGeometryFlags flags;
    flags.block_size = settings.block_size;
    flags.draft_layers = settings.draft_layers;
    flags.no_sliding_window = settings.sliding_window == 0;
    flags.sliding_window = std::max<std::int64_t>(settings.sliding_window, 0);
    flags.target_layer_ids = settings.target_layer_ids;
    flags.mask_token_id = static_cast<std::int32_t>(settings.mask_token_id);
    flags.draft_config = settings.draft_config;
    return make_draft_spec(target, flags, tokenizer_mask);
}

void check_same_template(const std::string& draft_folder, const ChatTemplate& data_template) {
    const Json training = read_draft_provenance(draft_folder).training;
    const std::string where = draft_folder + "/training.json";
    const auto name = json_get_or<std::string>(training, "template", template_name(data_template.kind), where);
    const auto thinking = json_get_or<std::string>(training, "thinking", data_template.thinking ? "on" : "off", where);
    if (name == template_name(data_template.kind) && thinking == (data_template.thinking ? "on" : "off")) return;
    throw_bad_input("--init-from {}: it was trained with template {}, thinking {}; the data has {}, thinking {}", draft_folder, name,
                    thinking, template_name(data_template.kind), data_template.thinking ? "on" : "off");
}

}  // namespace dflash
