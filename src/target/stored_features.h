// SPDX-License-Identifier: MIT
// Features read from a folder (features_folder.h): the same micro-batches in the same order as from the live target, since the loader packs
// the folder's own data set. Rows are converted to the buffer's dtype as they are read, on the CPU straight into it; the mapped pages do not
// stay resident. For a GPU a background thread reads one micro-batch ahead into page-locked memory, from where they are copied beside the
// step that still runs (feature_buffer.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/loader.h"
#include "target/feature_buffer.h"
#include "target/features_folder.h"

namespace dflash {

struct StoredFeatureSettings {
    std::vector<std::int64_t> taps;  // wanted layers, any of the stored ones
    std::string target_fingerprint;  // of the target whose embedding and head the drafter uses
};

// Page-locked host memory that a source on `device` takes: two micro-batches' features of `feature_bytes` each; none on the CPU.
std::size_t stored_features_pinned_bytes(Device device, std::size_t feature_bytes);

class StoredFeatures final : public FeatureSource {
public:
    // `data` is the folder's data set, features_data_folder(folder). It and `buffer`, which the features are handed out in, must outlive the
    // source. Error(kBadInput) when the features are another target's, of other data, or lack a wanted layer.
    StoredFeatures(const std::string& folder, const Dataset& data, const LoaderSettings& loader, const StoredFeatureSettings& settings,
                   FeatureBuffer& buffer);
    ~StoredFeatures() override;
    std::int64_t batches_in_epoch(std::int64_t epoch) const override;
    void seek(std::int64_t epoch, std::int64_t cursor) override;
    FeatureBatch next(const Context& context) override;
    void release(const Context& context) override;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace dflash
