// SPDX-License-Identifier: MIT
// Features read from a folder (features_folder.h): the same micro-batches in the same order as from the live target, since the loader packs
// the folder's own data set. Rows are converted, a few megabytes at a time, and uploaded into planned buffers; the mapped pages do not stay
// resident.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/loader.h"
#include "target/features.h"
#include "target/features_folder.h"

namespace dflash {

struct StoredFeatureSettings {
    std::vector<std::int64_t> taps;  // wanted layers, any of the stored ones
    std::string target_fingerprint;  // of the target whose embedding and head the drafter uses
    Tensor taps_out;                 // (S, K*C), f32 or bf16: planned memory, normally "target.features.taps"
    Tensor final_out;                // optional (S, C), as taps_out: "target.features.final_state"
};

class StoredFeatures final : public FeatureSource {
public:
    // `data` is the folder's data set, features_data_folder(folder), and must outlive the source. Error(kBadInput) when the features are
    // another target's, of other data, or lack a wanted layer.
    StoredFeatures(const std::string& folder, const Dataset& data, const LoaderSettings& loader, const StoredFeatureSettings& settings);
    ~StoredFeatures() override;
    std::int64_t batches_in_epoch(std::int64_t epoch) const override;
    void seek(std::int64_t epoch, std::int64_t cursor) override;
    FeatureBatch next(const Context& context) override;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace dflash
