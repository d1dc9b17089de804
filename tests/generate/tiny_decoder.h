// SPDX-License-Identifier: MIT
// A bundled tiny target, and a drafter with random weights, in one arena: what the tests of decoding stand on.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "generate/generate.h"
#include "io/json.h"
#include "model/target_weights.h"
#include "target/loaded_target.h"
#include "tensor/arena.h"
#include "tensor/working_dtype.h"

namespace dflash::testing {

inline std::string tiny_folder(const std::string& name) { return std::string(DFLASH_FIXTURES) + "/" + name; }

// A small drafter for the target: two layers, the first one sliding.
inline DraftSpec tiny_draft_spec(const TargetConfig& target, std::int64_t block_size, std::int64_t shift = 0) {
    DraftGeometryFlags flags;
    flags.block_size = block_size;
    flags.draft_layers = 2;
    flags.no_sliding_window = true;
    DraftSpec spec = make_draft_spec(target, flags, 4095);
    spec.alignment_shift = shift;
    spec.layers[0] = {DraftLayerKind::kSlidingAttention, 24, true};
    return spec;
}

// Far from the usual small start, so that each token and position matters for what is drafted.
inline void randomise_draft(const Context& context, const DraftTensors& weights, std::uint64_t seed) {
    initialise_draft({weights, {}}, seed);
    Philox rng(seed, 99);
    for (const NamedTensor& named : named_tensors(weights)) {
        const bool is_norm = named.tensor.shape.rank() == 1;
        std::vector<float> values = values_of(context, named.tensor);
        for (float& value : values) value = is_norm ? static_cast<float>(1 + 0.2 * rng.next_normal()) : 3 * value;
        set_values(context, values, named.tensor);
    }
}

struct TinyDecoder {
    TinyDecoder(const std::string& name, const std::optional<DraftSpec>& spec, const GeneratorSettings& generator_settings,
                std::vector<BufferSpec> more_buffers = {}, std::uint64_t seed = 1)
        : settings(generator_settings), context(generator_settings.device) {
        target = read_target_config(tiny_folder(name));
        if (spec) {
            draft.emplace();
            draft->spec = *spec;
        }
        const Lifetime always;
        const DType working = working_dtype(settings.device);
        const DraftSpec* draft_spec = draft ? &draft->spec : nullptr;
        std::vector<BufferSpec> buffers = std::move(more_buffers);
        const auto add = [&](const std::vector<BufferSpec>& part) { buffers.insert(buffers.end(), part.begin(), part.end()); };
        add(target_weight_buffers(target, TargetPart::kAll, settings.device, always));
        add(generator_buffers(target, draft_spec, settings, always, always));
        if (draft) add(draft_tensor_buffers(draft->spec, "draft.weight", Category::kWeights, always, working, working));
        arena = poisoned_arena(buffers, settings.device);
        weights = bind_target_weights(target, TargetPart::kAll, *arena);
        load_target_weights(tiny_folder(name), target, TargetPart::kAll, weights);
        if (!draft) return;
        draft->weights = bind_draft_tensors(draft->spec, "draft.weight", *arena);
        draft->embedding = weights.embedding;
        draft->head = weights.head;
        randomise_draft(context, draft->weights, seed);
    }

    std::unique_ptr<Generator> make_generator() const {
        return std::make_unique<Generator>(target, weights, draft ? &*draft : nullptr, settings, *arena);
    }
    std::unique_ptr<Generator> make_generator(std::unique_ptr<Proposer> proposer) const {
        return std::make_unique<Generator>(target, weights, draft->spec, std::move(proposer), settings, *arena);
    }

    GeneratorSettings settings;
    Context context;
    TargetConfig target;
    std::unique_ptr<Arena> arena;
    TargetWeights weights;
    std::optional<DraftModel> draft;
};

struct GoldenText {
    std::vector<std::int32_t> prompt, greedy;
};
// Prompts and the tokens that plain greedy decoding gives in another implementation, in fp32.
inline std::vector<GoldenText> golden_texts(const std::string& name) {
    std::vector<GoldenText> texts;
    const Json golden = read_json_file(std::string(DFLASH_FIXTURES) + "/golden/greedy.json");
    for (const Json& row : golden.at(name)) {
        texts.push_back({row.at("prompt_ids").get<std::vector<std::int32_t>>(), row.at("greedy_ids").get<std::vector<std::int32_t>>()});
    }
    return texts;
}

}  // namespace dflash::testing
