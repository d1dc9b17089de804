// SPDX-License-Identifier: MIT
// From checkpoint folders to a ready Generator: configs are read and compared, one arena is planned and allocated for weights, caches and
// scratch, weights are loaded into it. For commands and tests; training decodes within its own arena.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "generate/generate.h"
#include "model/target_weights.h"

namespace dflash {

struct DecodingOptions {
    std::string target;  // folder
    std::string draft;   // folder; empty: the target alone
    // Weights of the drafter are drawn afresh from this seed, only its config is read.
    std::optional<std::uint64_t> untrained_seed;
    bool allow_target_mismatch = false;  // go on, with a warning, when the drafter was trained for another target
    GeneratorSettings generator;
    Device device;
};

// Refuses (Error kBadInput) a drafter whose training.json names another target's fingerprint; a warning with `allow`.
void check_draft_provenance(const std::string& draft_folder, const std::string& target_folder, bool allow);

class DecodingSetup {
public:
    // Throws Error(kBadInput) for what does not fit together, or into memory.
    explicit DecodingSetup(const DecodingOptions& options);

    const Context& context() const { return context_; }
    Generator& generator() { return *generator_; }
    const TargetConfig& target() const { return target_; }
    const TargetWeights& target_weights() const { return target_weights_; }
    const DraftModel* draft() const { return draft_ ? &*draft_ : nullptr; }
    std::size_t arena_bytes() const { return arena_->bytes(); }

private:
    void allocate(const DecodingOptions& options);
    void load(const DecodingOptions& options);

    Context context_;
    TargetConfig target_;
    std::optional<DraftModel> draft_;
    std::unique_ptr<Arena> arena_;
    TargetWeights target_weights_;
    std::unique_ptr<Generator> generator_;
};

}  // namespace dflash
