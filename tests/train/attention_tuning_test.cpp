// SPDX-License-Identifier: MIT
// Choosing attention kernels by measurement: what is stored, found again, refused, and told apart. A script stands in for the GPU's times.
#include "train/attention_tuning.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "base/error.h"
#include "io/json.h"
#include "support/device_case.h"
#include "support/temporary_folder.h"
#include "train/attention_workload.h"

namespace dflash {
namespace {

using cuda::AttentionChoices;
using cuda::AttentionKernel;
using cuda::AttentionKey;
using cuda::AttentionPass;

DraftSpec drafter() {
    DraftSpec spec;
    spec.heads = 32;
    spec.kv_heads = 8;
    spec.head_dim = 128;
    spec.layers = {{DraftLayerKind::kSlidingAttention, 2048, true}, {DraftLayerKind::kSlidingAttention, 2048, true}, {}};
    return spec;
}
const TuningDevice kHopper("NVIDIA H200", 90, "0000aaaa");

// The last kernel of a device is the fastest.
double last_is_fastest(const AttentionKey& key, const AttentionKernel& kernel) {
    const auto kernels = cuda::attention_kernels(kHopper.compute_capability, key.pass);
    return kernel == kernels.back() ? 1.0 : 2.0;
}
double no_measurement(const AttentionKey&, const AttentionKernel&) {
    ADD_FAILURE() << "measured again";
    return 0;
}

TEST(AttentionTuning, KeysCoverEachKindOfLayerInBothPasses) {
    const auto keys = attention_keys(drafter(), 8000, 512);
    ASSERT_EQ(keys.size(), 4U);
    std::set<std::string> texts;
    for (const AttentionKey& key : keys) {
        texts.insert(key.text());
        EXPECT_EQ(key.context_bucket, 8192);
        EXPECT_EQ(key.anchor_bucket, 512);
        EXPECT_EQ(key.window > 0, key.causal_block);
    }
    EXPECT_EQ(texts.size(), keys.size());
}

TEST(AttentionTuning, AColdAndAWarmCacheChooseTheSame) {
    const testing::TemporaryFolder folder;
    const auto keys = attention_keys(drafter(), 8192, 512);
    AttentionChoices cold;
    {
        TileCache cache(folder.path());
        EXPECT_TRUE(remembered_choices(cache, kHopper, keys).all().empty());
        for (const AttentionKey& key : keys) {
            const TunedKernel tuned = tune_attention(cache, kHopper, key, last_is_fastest);
            EXPECT_TRUE(tuned.stored);
            EXPECT_EQ(tuned.ms.size(), cuda::attention_kernels(90, key.pass).size());
            cold.set(key, tuned.best);
        }
    }
    TileCache cache(folder.path());
    const AttentionChoices warm = remembered_choices(cache, kHopper, keys);
    for (const AttentionKey& key : keys) {
        ASSERT_NE(warm.find(key), nullptr);
        EXPECT_EQ(*warm.find(key), *cold.find(key));
        EXPECT_EQ(*warm.find(key), cuda::attention_kernels(90, key.pass).back());
    }
}

TEST(AttentionTuning, TheDefaultStaysWhereOthersGainNextToNothing) {
    const testing::TemporaryFolder folder;
    TileCache cache(folder.path());
    for (const AttentionKey& key : attention_keys(drafter(), 8192, 512)) {
        const auto kernels = cuda::attention_kernels(90, key.pass);
        const auto measure = [&](const AttentionKey&, const AttentionKernel& kernel) { return kernel == kernels.front() ? 1.0 : 0.99; };
        EXPECT_EQ(tune_attention(cache, kHopper, key, measure).best, kernels.front());
    }
}

TEST(AttentionTuning, AnotherBuildDeviceOrShapeHasItsOwnEntry) {
    const testing::TemporaryFolder folder;
    TileCache cache(folder.path());
    const AttentionKey base{AttentionPass::kForward, 32, 8, 128, 16, 0, false, 4096, 512};
    std::vector<AttentionKey> keys(6, base);
    keys[1].head_dim = 64;
    keys[2].block_size = 8;
    keys[3].context_bucket = 64;
    keys[4].causal_block = true;
    keys[5].pass = AttentionPass::kBackward;
    const TuningDevice devices[] = {
        kHopper, {"NVIDIA H200", 90, "0000bbbb"}, {"NVIDIA H100", 90, "0000aaaa"}, {"NVIDIA H200", 80, "0000aaaa"}};
    std::set<std::string> paths;
    for (const TuningDevice& device : devices) {
        for (const AttentionKey& key : keys) {
            EXPECT_EQ(cache.find(device.cache_key(key), [](const std::string&) { return true; }), std::nullopt) << device.cache_key(key);
            EXPECT_TRUE(tune_attention(cache, device, key, last_is_fastest).stored);
            paths.insert(cache.path_of(device.cache_key(key)));
        }
    }
    EXPECT_EQ(paths.size(), std::size(devices) * keys.size());
    EXPECT_EQ(cache.state().files, paths.size());
}

// A kernel that this device cannot run must never be launched, whoever wrote its name into the cache.
TEST(AttentionTuning, AnIllegalCachedKernelIsRefused) {
    const testing::TemporaryFolder folder;
    const TuningDevice ampere("NVIDIA A100", 80, "0000aaaa");
    const auto keys = attention_keys(drafter(), 8192, 512);
    for (const char* id : {"hopper", "portable-512x512", ""}) {
        TileCache cache(folder.path());
        for (const AttentionKey& key : keys) ASSERT_TRUE(cache.store(ampere.cache_key(key), id));
        EXPECT_TRUE(remembered_choices(cache, ampere, keys).all().empty()) << id;
        EXPECT_EQ(cache.state().files, 0U) << "set aside: " << id;
    }
    TileCache cache(folder.path());
    ASSERT_TRUE(cache.store(ampere.cache_key(keys.front()), "portable-4x64"));
    EXPECT_EQ(remembered_choices(cache, ampere, keys).all().size(), 1U);
}

TEST(AttentionTuning, ARunsRecordGivesItsChoicesBack) {
    const auto keys = attention_keys(drafter(), 8192, 512);
    AttentionChoices choices;
    for (const AttentionKey& key : keys) choices.set(key, cuda::attention_kernels(90, key.pass).back());
    const Json record = Json::parse(choices_to_json(choices).dump());
    const AttentionChoices again = choices_from_json(record, kHopper, keys);
    for (const AttentionKey& key : keys) EXPECT_EQ(*again.find(key), *choices.find(key));
    EXPECT_TRUE(choices_from_json(Json::object(), kHopper, keys).all().empty());
    const Json foreign = {{keys.front().text(), "hopper"}, {keys.back().text(), 7}};
    EXPECT_TRUE(choices_from_json(foreign, TuningDevice("NVIDIA A100", 80, "x"), keys).all().empty());
    EXPECT_TRUE(choices_for_run(Device{}, keys, nullptr).all().empty());
}

TEST(AttentionTuning, NothingIsMeasuredTwiceInOneProcess) {
    const testing::TemporaryFolder folder;
    TileCache cache(folder.path());
    const auto keys = attention_keys(drafter(), 8192, 512);
    const auto choose = [&](const AttentionKey& key, const MeasureKernel& measure) {
        return cache.find_or_measure(
            kHopper.cache_key(key), [&](const std::string& id) { return kHopper.kernel_of(key, id) != nullptr; },
            [&] { return std::string(tune_attention(cache, kHopper, key, measure).best.id); });
    };
    for (const AttentionKey& key : keys) {
        const std::string first = choose(key, last_is_fastest);
        EXPECT_EQ(choose(key, no_measurement), first);
    }
}

class AttentionWorkloads : public testing::DeviceTest {};

// Whatever was chosen runs; on a GPU two runs with one choice have the same bits, and every choice agrees with the default.
TEST_P(AttentionWorkloads, EveryChoiceComputesTheSameFunction) {
    const AttentionShape shape{
        .name = "small", .context = 200, .anchors = 20, .documents = 2, .heads = 4, .kv_heads = 2, .head_dim = 64, .block_size = 4};
    Context context(device());
    const AttentionWorkload workload(context, shape);
    const auto run = [&] {
        workload.forward();
        std::vector<unsigned char> bits(workload.out().bytes());
        context.download(workload.out(), bits.data());
        return bits;
    };
    const auto widened = [&](const std::vector<unsigned char>& bits) {
        std::vector<double> values(static_cast<std::size_t>(workload.out().elements()));
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (workload.out().dtype == DType::kF32) {
                values[i] = static_cast<double>(reinterpret_cast<const float*>(bits.data())[i]);
            } else {
                values[i] = static_cast<double>(bf16_to_float(reinterpret_cast<const std::uint16_t*>(bits.data())[i]));
            }
        }
        return values;
    };
    const auto plain = run();
    EXPECT_EQ(run(), plain);
    const AttentionKey key{AttentionPass::kForward, 4, 2, 64, 4, 0, false, cuda::length_bucket(200), cuda::length_bucket(20)};
    const int capability = device().type == DeviceType::kCuda ? TuningDevice(device()).compute_capability : 0;
    for (const AttentionKernel& kernel : cuda::attention_kernels(capability, AttentionPass::kForward)) {
        AttentionChoices choices;
        choices.set(key, kernel);
        context.bind_attention(&choices);
        const auto chosen = run();
        EXPECT_EQ(run(), chosen) << kernel.id;
        EXPECT_TRUE(testing::close(std::span<const double>(widened(chosen)), std::span<const double>(widened(plain)), testing::kOpBf16))
            << kernel.id;
    }
}

// What a cache gives back computes the same bits as the choice that was just measured, in both passes.
TEST_P(AttentionWorkloads, AnEmptyAndAWarmCacheGiveTheSameBits) {
    const AttentionShape shape{.name = "small", .context = 200, .anchors = 20, .heads = 4, .kv_heads = 2, .head_dim = 64, .block_size = 4};
    const testing::TemporaryFolder folder;
    const TuningDevice tuning = device().type == DeviceType::kCuda ? TuningDevice(device()) : kHopper;
    DraftSpec spec;
    spec.heads = shape.heads, spec.kv_heads = shape.kv_heads, spec.head_dim = shape.head_dim, spec.block_size = shape.block_size;
    spec.layers = {{}};
    const auto keys = attention_keys(spec, shape.context, shape.anchors);
    Context context(device());
    const AttentionWorkload workload(context, shape);
    const auto run = [&](const AttentionChoices& choices) {
        context.bind_attention(&choices);
        workload.forward();
        workload.backward();
        context.bind_attention(nullptr);
        const AnchorAttentionBackwardParams p = workload.tensors();
        std::vector<std::vector<unsigned char>> results;
        for (const Tensor* tensor : {&p.out, &p.lse, &p.d_q, &p.d_k_context, &p.d_v_context, &p.d_k_block, &p.d_v_block}) {
            results.emplace_back(tensor->bytes());
            context.download(*tensor, results.back().data());
        }
        return results;
    };
    const auto last_kernel = [&](const AttentionKey& key, const AttentionKernel& kernel) {
        return kernel == cuda::attention_kernels(tuning.compute_capability, key.pass).back() ? 1.0 : 2.0;
    };
    AttentionChoices cold;
    {
        TileCache cache(folder.path());
        for (const AttentionKey& key : keys) cold.set(key, tune_attention(cache, tuning, key, last_kernel).best);
    }
    const auto measured = run(cold);
    TileCache cache(folder.path());
    const AttentionChoices warm = remembered_choices(cache, tuning, keys);
    ASSERT_EQ(warm.all().size(), keys.size());
    EXPECT_EQ(run(warm), measured);
}
DFLASH_ON_EACH_DEVICE(AttentionWorkloads);

TEST(AttentionWorkload, CountsPairs) {
    AttentionShape shape{.name = "small", .context = 64, .anchors = 63, .documents = 4, .block_size = 4};
    AttentionAnchors anchors = draw_attention_anchors(shape);
    double pairs = 0;
    for (std::int64_t anchor = 1; anchor < 64; ++anchor) pairs += static_cast<double>(4 * (anchor % 16 + 4));
    EXPECT_EQ(anchors.pairs, pairs);
    shape.window = 3;
    shape.causal_block = true;
    pairs = 0;
    for (std::int64_t anchor = 1; anchor < 64; ++anchor) {
        for (std::int64_t slot = 0; slot < 4; ++slot) {
            for (std::int64_t row = anchor / 16 * 16; row < anchor; ++row) pairs += row >= anchor + slot - 2 ? 1 : 0;
            pairs += static_cast<double>(slot + 1);
        }
    }
    EXPECT_EQ(draw_attention_anchors(shape).pairs, pairs);
    shape.anchors = 64;
    EXPECT_THROW(draw_attention_anchors(shape), Error);
}

}  // namespace
}  // namespace dflash
