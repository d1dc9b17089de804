// SPDX-License-Identifier: MIT
// Features on disk: the file for looking at holds what the target computes, and a folder gives the trainer the same micro-batches as the
// live target.
#include "target/stored_features.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>

#include "io/atomic_file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "support/close.h"
#include "support/data.h"
#include "support/device_case.h"
#include "support/errors.h"
#include "support/temporary_folder.h"
#include "target/features_writer.h"
#include "target/live_features.h"
#include "target/loaded_target.h"

namespace dflash {
namespace {

using namespace dflash::testing;  // NOLINT: test helpers

const std::string kTarget = std::string(DFLASH_FIXTURES) + "/tiny-qwen3.5";
constexpr std::int64_t kBudget = 96;
const FeaturesProgress kQuiet = [](std::int64_t, std::int64_t) {};

// Rows with ready ids, of several lengths, ids "row-0" ...
std::string ready_rows(const std::vector<std::int64_t>& lengths) {
    std::string text;
    for (std::size_t row = 0; row < lengths.size(); ++row) {
        Philox rng(row, 4);
        Json line = {{"id", fmt::format("row-{}", row)}, {"input_ids", Json::array()}, {"loss_mask", Json::array()}};
        for (std::int64_t i = 0; i < lengths[row]; ++i) {
            line["input_ids"].push_back(rng.next_below(4000));
            line["loss_mask"].push_back(i > 0 ? 1 : 0);
        }
        text += line.dump() + "\n";
    }
    return text;
}

class StoredFeaturesTest : public DeviceTest {
protected:
    StoredFeaturesTest() {
        settings.inputs = {folder.write("rows.jsonl", ready_rows({7, 65, 40, 3, 90, 12, 30, 5}))};
        settings.target = kTarget;
    }
    FeaturesOutput output(const std::string& out, const FeatureRequest& request, DType dtype) const {
        return {kTarget, out, request, dtype, 200'000, device()};
    }
    std::string write_folder(const FeatureRequest& request, DType dtype = DType::kF32) const {
        const std::string out = folder.file("features");
        const auto make_data = [&](const std::string& path) {
            PrepareSettings prepare = settings;
            prepare.out = path;
            prepare_dataset(prepare);
        };
        shards = write_features_folder(make_data, output(out, request, dtype), [](const Dataset&) { return kQuiet; });
        return out;
    }
    // The same rows computed beside others: on CUDA, products of another row count round otherwise.
    Tolerance computed_again() const { return device().type == DeviceType::kCpu ? kChunkF32 : tolerance(kModelF32); }
    TemporaryFolder folder;
    PrepareSettings settings;
    mutable std::int64_t shards = 0;
};

TEST_P(StoredFeaturesTest, GivesTheBatchesOfTheLiveTarget) {
    const TargetForwardSettings forward{kBudget, {1, 4}, true};
    LoadedTarget target(kTarget, forward, {}, device());
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const std::string out = write_folder({{0, 1, 4}, true, false}, dtype);
        EXPECT_GT(shards, 1);
        const Dataset data(features_data_folder(out));
        const LoaderSettings order{3, kBudget, 0, 1, 2};
        Loader loader(data, order);
        LiveFeatures live(*target.model, loader);
        const DType working = working_dtype(device());
        const DeviceBuffer taps(device(), working, {kBudget, 2 * target.config.hidden});
        const DeviceBuffer final_state(device(), working, {kBudget, target.config.hidden});
        FeatureBuffer buffer({taps, final_state});
        StoredFeatures stored(out, data, order, {{1, 4}, target_fingerprint(kTarget)}, buffer);
        ASSERT_EQ(stored.batches_in_epoch(0), live.batches_in_epoch(0));
        const Tolerance bound = dtype == DType::kBF16 && device().type == DeviceType::kCpu ? kOpBf16 : computed_again();
        const auto agree = [&](const Tensor& a, const Tensor& b) {
            const std::vector<float> got = target.values(a), wanted = target.values(b);
            return close(std::span<const float>(got), std::span<const float>(wanted), bound);
        };
        for (std::int64_t batch = 0; batch < 2 * live.batches_in_epoch(0); ++batch) {
            const FeatureBatch expected = live.next(target.context);
            const FeatureBatch got = stored.next(target.context);
            EXPECT_EQ(got.batch->ids, expected.batch->ids);
            EXPECT_EQ(got.batch->document_begin, expected.batch->document_begin);
            EXPECT_EQ(got.batch->epoch, expected.batch->epoch);
            EXPECT_TRUE(agree(got.features.taps, expected.features.taps));
            EXPECT_TRUE(agree(got.features.final_state, expected.features.final_state));
        }
        stored.seek(1, 1);
        live.seek(1, 1);
        EXPECT_EQ(stored.next(target.context).batch->ids, live.next(target.context).batch->ids);
    }
}

TEST_P(StoredFeaturesTest, RefusesWhatDoesNotBelongTogether) {
    const std::string out = write_folder({{1, 4}, false, false});
    const Dataset data(features_data_folder(out));
    const std::string fingerprint = target_fingerprint(kTarget);
    const HostBuffer taps(DType::kF32, {kBudget, 512}), final_state(DType::kF32, {kBudget, 256});
    FeatureBuffer buffer({taps, {}}), with_final({taps, final_state});
    const LoaderSettings order{3, kBudget, 0, 1, 2};
    const auto open = [&](const StoredFeatureSettings& wanted, FeatureBuffer& to) {
        return [&, wanted] { StoredFeatures(out, data, order, wanted, to); };
    };
    const StoredFeatureSettings good{{1, 4}, fingerprint};
    EXPECT_TRUE(refuses(open({{1, 4}, "another"}, buffer), {"another target"}));
    EXPECT_TRUE(refuses(open({{1, 5}, fingerprint}, buffer), {"layer 5", "1,4"}));
    EXPECT_TRUE(refuses(open(good, with_final), {"final"}));

    settings.inputs = {folder.write("others.jsonl", ready_rows({8, 9}))};
    const Dataset others = Dataset::from_jsonl(settings);
    EXPECT_TRUE(refuses([&] { StoredFeatures(out, others, order, good, buffer); }, {"not the one"}));

    const std::string shard = out + "/" + features_shard_name(0);
    std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 4);
    EXPECT_TRUE(refuses(open(good, buffer), {features_shard_name(0), "damaged"}));
    std::filesystem::remove(shard);
    EXPECT_TRUE(refuses(open(good, buffer), {features_shard_name(0), "missing"}));
    std::filesystem::remove(features_manifest_path(out));
    EXPECT_TRUE(refuses(open(good, buffer), {"manifest.json"}));
}

// Sources that share a buffer take turns while the host runs far ahead of the device: every reader sees its own micro-batch.
TEST_P(StoredFeaturesTest, TheNextMicroBatchWaitsForTheReadersOfTheLast) {
    const std::string out = write_folder({{1, 4}, true, false});
    const Dataset data(features_data_folder(out));
    const DType working = working_dtype(device());
    constexpr std::int64_t kHidden = 256, kBatches = 12;
    const std::int64_t work = device().type == DeviceType::kCuda ? 4096 : 64;
    const DeviceBuffer taps(device(), working, {kBudget, 2 * kHidden}), final_state(device(), working, {kBudget, kHidden});
    const DeviceBuffer seen(device(), working, {kBatches * kBudget, 2 * kHidden});
    const DeviceBuffer a(device(), working, {work, work}), b(device(), working, {work, work}), c(device(), working, {work, work});
    FeatureBuffer buffer({taps, final_state});
    const StoredFeatureSettings wanted{{1, 4}, target_fingerprint(kTarget)};
    const auto run = [&](bool wait, bool release) {
        StoredFeatures first(out, data, {3, kBudget, 0, 1, 2}, wanted, buffer), second(out, data, {4, kBudget, 0, 1, 2}, wanted, buffer);
        for (std::int64_t batch = 0; batch < kBatches; ++batch) {
            StoredFeatures& source = batch % 3 == 2 ? second : first;
            const FeatureBatch got = source.next(context());
            for (int i = 0; !wait && i < 4; ++i) linear_forward(context(), {a, b, c});  // the readers come late
            cast(context(), got.features.taps, seen.tensor().slice_rows(batch * kBudget, got.batch->tokens()));
            if (release) source.release(context());
            if (wait) context().synchronize();
        }
        std::vector<char> bytes(seen.tensor().bytes());
        context().download(seen, bytes.data());
        return bytes;
    };
    const std::vector<char> expected = run(true, false);
    EXPECT_EQ(run(false, true), expected);
    EXPECT_EQ(run(false, false), expected);
    EXPECT_TRUE(std::any_of(expected.begin(), expected.end(), [](char byte) { return byte != 0; }));
}

TEST_P(StoredFeaturesTest, TheFileHoldsWhatTheTargetComputes) {
    settings.keep_unsupervised = true;
    const Dataset data = Dataset::from_jsonl(settings);
    const std::string out = folder.file("features.safetensors");
    write_features_file(data, output(out, {{-1, 0, 7}, true, true}, DType::kF32), kQuiet);
    const SafetensorsFile file(out);
    EXPECT_EQ(file.entries().size(), 8U * (2 + 3 + 1 + 2));
    LoadedTarget target(kTarget, TargetForwardSettings{kBudget, {-1, 0, 7}, true}, {}, device());
    const std::int64_t hidden = target.config.hidden;
    const auto floats = [&](const std::string& name) {
        const SafetensorsEntry* entry = file.find(name);
        if (entry == nullptr || entry->dtype != "F32") return std::vector<float>{};
        std::vector<float> values(static_cast<std::size_t>(entry->elements()));
        std::memcpy(values.data(), entry->data, entry->bytes);
        return values;
    };
    const auto agree = [&](const std::vector<float>& got, const std::vector<float>& wanted) {
        return close(std::span<const float>(got), std::span<const float>(wanted), computed_again());
    };
    std::int64_t tokens = 0, equal = 0;
    for (std::int64_t row = 0; row < data.documents(); ++row) {
        const std::string id = fmt::format("row-{}", row);
        const auto ids = data.document(row).ids;
        const TargetFeatures features = target.model->forward(target.context, packed_batch({Ids(ids.begin(), ids.end())}));
        const std::vector<float> taps = target.values(features.taps);
        for (std::int64_t tap = 0; tap < 3; ++tap) {
            const std::vector<float> stored = floats(fmt::format("{}.hidden.{}", id, std::array{0, 1, 8}[static_cast<std::size_t>(tap)]));
            const std::vector<float> computed = tap_of(taps, features.taps.row_elements(), tap, hidden);
            EXPECT_TRUE(agree(stored, computed));
            if (device().type == DeviceType::kCpu) {
                EXPECT_EQ(stored, computed);
            }
        }
        EXPECT_TRUE(agree(floats(id + ".final"), target.values(features.final_state)));
        const SafetensorsEntry* stored_ids = file.find(id + ".input_ids");
        ASSERT_NE(stored_ids, nullptr);
        EXPECT_EQ(stored_ids->dtype, "I32");
        EXPECT_EQ(std::memcmp(stored_ids->data, ids.data(), ids.size_bytes()), 0);
        EXPECT_EQ(file.find(id + ".loss_mask")->dtype, "U8");

        const DeviceBuffer made(device(), DType::kF32, {std::ssize(ids), target.config.vocabulary});
        linear_forward(target.context, {features.final_state, target.weights.head, made});
        const std::vector<float> logits = target.values(made);
        const auto* best = reinterpret_cast<const std::int32_t*>(file.find(id + ".argmax")->data);
        std::vector<float> logsumexp;
        for (std::int64_t token = 0; token < std::ssize(ids); ++token) {
            const float* z = logits.data() + token * target.config.vocabulary;
            ++tokens;
            equal += best[token] == argmax(z, target.config.vocabulary) ? 1 : 0;
            double sum = 0;
            for (std::int64_t v = 0; v < target.config.vocabulary; ++v) sum += std::exp(static_cast<double>(z[v]));
            logsumexp.push_back(static_cast<float>(std::log(sum)));
        }
        EXPECT_TRUE(agree(floats(id + ".logsumexp"), logsumexp));
    }
    EXPECT_GE(equal, device().type == DeviceType::kCpu ? tokens : tokens * 9 / 10) << "of " << tokens;  // bf16 turns near-ties
}

TEST_P(StoredFeaturesTest, RowsOfOneIdAreRefusedAndNothingIsLeft) {
    const std::string row = ready_rows({5});
    settings.inputs = {folder.write("rows.jsonl", row + row)};
    const Dataset data = Dataset::from_jsonl(settings);
    const std::string out = folder.file("features.safetensors");
    const std::size_t files = folder.num_files();
    EXPECT_TRUE(refuses([&] { write_features_file(data, output(out, {{0}, false, false}, DType::kF32), kQuiet); }, {"row-0"}));
    EXPECT_TRUE(refuses([&] { write_features_file(data, output(out, {{8}, false, false}, DType::kF32), kQuiet); }, {}));
    EXPECT_EQ(folder.num_files(), files);
}

DFLASH_ON_EACH_DEVICE(StoredFeaturesTest);

TEST(FeatureRequest, NamesLayersThatDoNotExist) {
    const TargetConfig target = read_target_config(kTarget);
    EXPECT_TRUE(refuses([&] { check_feature_request({{0, 8}, false, false}, target); }, {"layer 8", "0 to 7"}));
    EXPECT_TRUE(refuses([&] { check_feature_request({{-2}, false, false}, target); }, {"layer -2"}));
    EXPECT_TRUE(refuses([&] { check_feature_request({{}, false, false}, target); }, {"nothing"}));
    EXPECT_NO_THROW(check_feature_request({{-1, 0, 7}, false, false}, target));
}

}  // namespace
}  // namespace dflash
