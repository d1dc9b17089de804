// SPDX-License-Identifier: MIT
// Toy checkpoints in every spelling, and with every fault, through plan, arena and loader.
#include "model/target_weights.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "support/errors.h"
#include "support/toy_checkpoint.h"
#include "tensor/plan.h"

namespace dflash {
namespace {

using testing::refuses;
using testing::TemporaryFolder;
using testing::ToyCheckpoint;

struct Loaded {
    TargetConfig config;
    std::unique_ptr<Arena> arena;
    TargetWeights weights;
    TargetLoadReport report;

    explicit Loaded(const std::string& folder, TargetPart part = TargetPart::kAll, std::int64_t num_layers = -1)
        : config(read_target_config(folder)) {
        const Plan plan = make_plan({"run"}, target_weight_buffers(config, part, Device{}, {0, 0}, num_layers));
        arena = std::make_unique<Arena>(Device{}, plan);
        weights = bind_target_weights(config, part, *arena, num_layers);
        report = load_target_weights(folder, config, part, weights);
    }
};

::testing::AssertionResult equal(const Tensor& got, const testing::ToyTensor& expected) {
    if (!got.defined()) return ::testing::AssertionFailure() << "not bound";
    if (got.elements() != static_cast<std::int64_t>(expected.values.size())) return ::testing::AssertionFailure() << got.elements();
    for (std::size_t i = 0; i < expected.values.size(); ++i) {
        if (!(got.f32()[i] == expected.values[i])) return ::testing::AssertionFailure() << "differs at " << i;
    }
    return ::testing::AssertionSuccess();
}

Loaded load(const ToyCheckpoint& toy, std::size_t shards = 1) {
    const TemporaryFolder folder;
    toy.write(folder, shards);
    return Loaded(folder.path());
}

// Resident bytes of this process that are backed by files.
std::size_t resident_file_bytes() {
    std::ifstream status("/proc/self/status");
    std::string word;
    while (status >> word) {
        if (word == "RssFile:") {
            std::size_t kib = 0;
            status >> kib;
            return kib * 1024;
        }
    }
    return 0;
}

TEST(TargetWeights, DenseTensorsLandInTheirPlaces) {
    const ToyCheckpoint toy = testing::toy_qwen3();
    const Loaded loaded = load(toy, 2);
    const TargetLayerWeights& layer = loaded.weights.layers[2];
    const std::string name = "model.layers.2.";
    EXPECT_TRUE(equal(loaded.weights.embedding, toy.tensors.at("model.embed_tokens.weight")));
    EXPECT_TRUE(equal(loaded.weights.head, toy.tensors.at("lm_head.weight")));
    EXPECT_TRUE(equal(loaded.weights.final_norm, toy.tensors.at("model.norm.weight")));
    EXPECT_TRUE(equal(layer.input_norm, toy.tensors.at(name + "input_layernorm.weight")));
    EXPECT_TRUE(equal(layer.post_norm, toy.tensors.at(name + "post_attention_layernorm.weight")));
    EXPECT_TRUE(equal(layer.attention.q_proj, toy.tensors.at(name + "self_attn.q_proj.weight")));
    EXPECT_TRUE(equal(layer.attention.k_proj, toy.tensors.at(name + "self_attn.k_proj.weight")));
    EXPECT_TRUE(equal(layer.attention.v_proj, toy.tensors.at(name + "self_attn.v_proj.weight")));
    EXPECT_TRUE(equal(layer.attention.o_proj, toy.tensors.at(name + "self_attn.o_proj.weight")));
    EXPECT_TRUE(equal(layer.attention.q_norm, toy.tensors.at(name + "self_attn.q_norm.weight")));
    EXPECT_TRUE(equal(layer.attention.k_norm, toy.tensors.at(name + "self_attn.k_norm.weight")));
    EXPECT_TRUE(equal(layer.gate_proj, toy.tensors.at(name + "mlp.gate_proj.weight")));
    EXPECT_TRUE(equal(layer.up_proj, toy.tensors.at(name + "mlp.up_proj.weight")));
    EXPECT_TRUE(equal(layer.down_proj, toy.tensors.at(name + "mlp.down_proj.weight")));
    EXPECT_FALSE(layer.delta.conv.defined());
    EXPECT_EQ(loaded.report.loaded, static_cast<std::int64_t>(toy.tensors.size()));
    EXPECT_TRUE(loaded.report.warnings.empty());
}

TEST(TargetWeights, HybridTensorsLandInTheirPlaces) {
    const ToyCheckpoint toy = testing::toy_hybrid();
    const Loaded loaded = load(toy);
    const DeltaWeights& delta = loaded.weights.layers[1].delta;
    const std::string name = "model.layers.1.linear_attn.";
    EXPECT_TRUE(equal(delta.in_proj_qkv, toy.tensors.at(name + "in_proj_qkv.weight")));
    EXPECT_TRUE(equal(delta.in_proj_z, toy.tensors.at(name + "in_proj_z.weight")));
    EXPECT_TRUE(equal(delta.in_proj_b, toy.tensors.at(name + "in_proj_b.weight")));
    EXPECT_TRUE(equal(delta.in_proj_a, toy.tensors.at(name + "in_proj_a.weight")));
    EXPECT_TRUE(equal(delta.conv, toy.tensors.at(name + "conv1d.weight")));
    EXPECT_EQ(delta.conv.shape, (Shape{128, 4}));
    EXPECT_TRUE(equal(delta.a_log, toy.tensors.at(name + "A_log")));
    EXPECT_TRUE(equal(delta.dt_bias, toy.tensors.at(name + "dt_bias")));
    EXPECT_TRUE(equal(delta.norm, toy.tensors.at(name + "norm.weight")));
    EXPECT_TRUE(equal(delta.out_proj, toy.tensors.at(name + "out_proj.weight")));
    EXPECT_FALSE(loaded.weights.layers[1].attention.q_proj.defined());
    EXPECT_EQ(loaded.weights.layers[3].attention.q_proj.shape, (Shape{128, 64}));
    EXPECT_FALSE(loaded.weights.layers[3].delta.conv.defined());
}

TEST(TargetWeights, LlamaHasNoQueryAndKeyNorms) {
    const Loaded loaded = load(testing::toy_llama());
    EXPECT_TRUE(loaded.weights.layers[0].attention.q_proj.defined());
    EXPECT_FALSE(loaded.weights.layers[0].attention.q_norm.defined());
}

TEST(TargetWeights, EveryPrefixLoadsTheSameAndTheRestIsCounted) {
    const ToyCheckpoint plain = testing::toy_hybrid();
    for (const std::string prefix : {"model.", "model.language_model.", "language_model.model."}) {
        ToyCheckpoint toy = testing::toy_multimodal(prefix);
        if (prefix == "language_model.model.") {
            toy.tensors["language_model.lm_head.weight"] = toy.tensors.at("lm_head.weight");
            toy.tensors.erase("lm_head.weight");
        }
        toy.tensors["model.stray.weight"] = toy.tensors.at("mtp.fc.weight");
        const Loaded loaded = load(toy, 3);
        EXPECT_TRUE(equal(loaded.weights.embedding, plain.tensors.at("model.embed_tokens.weight"))) << prefix;
        EXPECT_TRUE(equal(loaded.weights.head, plain.tensors.at("lm_head.weight"))) << prefix;
        EXPECT_TRUE(equal(loaded.weights.layers[3].down_proj, plain.tensors.at("model.layers.3.mlp.down_proj.weight"))) << prefix;
        EXPECT_EQ(loaded.report.loaded, static_cast<std::int64_t>(plain.tensors.size())) << prefix;
        EXPECT_EQ(loaded.report.skipped_vision, 2) << prefix;
        EXPECT_EQ(loaded.report.skipped_mtp, 1) << prefix;
        EXPECT_EQ(loaded.report.unexpected, (std::vector<std::string>{"model.stray.weight"})) << prefix;
    }
    ToyCheckpoint unknown = testing::toy_hybrid();
    unknown.set_prefix("backbone.");
    EXPECT_TRUE(refuses([&] { load(unknown); }, {"model.language_model.embed_tokens.weight"}));
    ToyCheckpoint twice = testing::toy_hybrid();
    twice.tensors["model.language_model.embed_tokens.weight"] = twice.tensors.at("model.embed_tokens.weight");
    EXPECT_TRUE(refuses([&] { load(twice); }, {"both", "'model.embed_tokens.weight'"}));
}

TEST(TargetWeights, AnyFloatTypeLoadsAsF32) {
    for (const char* dtype : {"F32", "BF16", "F16"}) {
        ToyCheckpoint toy = testing::toy_qwen3();
        for (auto& [name, tensor] : toy.tensors) tensor.dtype = dtype;
        toy.tensors.at("model.norm.weight").dtype = "F32";  // types may be mixed
        const Loaded loaded = load(toy);
        const float* got = loaded.weights.embedding.f32();
        const std::vector<float>& expected = toy.tensors.at("model.embed_tokens.weight").values;
        for (std::size_t i = 0; i < expected.size(); ++i) {
            // Half precision has fewer exponents: what is below its smallest normal number was stored as zero.
            const bool flushed = std::string(dtype) == "F16" && std::abs(expected[i]) < 0x1p-14F;
            ASSERT_EQ(got[i], flushed ? 0.0F : expected[i]) << dtype << " " << i;
        }
    }
    const TemporaryFolder folder;
    const ToyCheckpoint toy = testing::toy_qwen3();
    toy.write(folder);
    std::vector<SafetensorsWriter::Declared> declared;
    for (const auto& [name, tensor] : toy.tensors) declared.push_back({name, "F8_E4M3", tensor.shape});
    SafetensorsWriter writer(folder.file("model.safetensors"), declared);
    for (const auto& [name, tensor] : toy.tensors) writer.write(name, tensor.values.data(), tensor.values.size());
    writer.finish();
    EXPECT_TRUE(refuses([&] { const Loaded l(folder.path()); }, {"model.safetensors", "F8_E4M3"}));
}

TEST(TargetWeights, ATiedHeadIsTheEmbedding) {
    ToyCheckpoint toy = testing::toy_qwen3();
    toy.config["tie_word_embeddings"] = true;
    toy.tensors.erase("lm_head.weight");
    const Loaded tied = load(toy);
    EXPECT_EQ(tied.weights.head.data, tied.weights.embedding.data);
    EXPECT_FALSE(tied.arena->has("target.lm_head.weight"));
    const Loaded untied = load(testing::toy_qwen3());
    EXPECT_EQ(untied.arena->bytes() - tied.arena->bytes(), untied.weights.head.bytes());

    toy.tensors["lm_head.weight"] = toy.tensors.at("model.embed_tokens.weight");  // a copy is harmless
    EXPECT_TRUE(load(toy).report.unexpected.empty());
    toy.tensors["lm_head.weight"].values[5] += 1;
    EXPECT_TRUE(refuses([&] { load(toy); }, {"tie_word_embeddings = true", "lm_head.weight", "model.embed_tokens.weight"}));
}

TEST(TargetWeights, AnUntiedModelWithoutAHeadIsIncomplete) {
    ToyCheckpoint toy = testing::toy_qwen3();
    toy.tensors.erase("lm_head.weight");
    EXPECT_TRUE(refuses([&] { load(toy); }, {"tie_word_embeddings = false", "lm_head.weight", "set it to true"}));
}

TEST(TargetWeights, MissingAndMisshapenTensorsAreAllNamed) {
    ToyCheckpoint toy = testing::toy_hybrid();
    toy.tensors.erase("model.norm.weight");
    toy.tensors.erase("model.layers.0.linear_attn.A_log");
    EXPECT_TRUE(refuses([&] { load(toy); }, {"2 tensors", "model.norm.weight", "model.layers.0.linear_attn.A_log"}));
    toy = testing::toy_hybrid();
    toy.add("model.layers.3.self_attn.q_proj.weight", {64, 64}, 1);  // without the gate
    toy.add("model.layers.1.linear_attn.conv1d.weight", {128, 4, 1, 1}, 1);
    EXPECT_TRUE(refuses([&] { load(toy); }, {"2 tensors", "model.layers.3.self_attn.q_proj.weight is [64, 64], expected (128, 64)",
                                             "conv1d.weight is [128, 4, 1, 1], expected (128, 4)"}));
}

TEST(TargetWeights, FaultsBetweenIndexAndShards) {
    const TemporaryFolder folder;
    const ToyCheckpoint toy = testing::toy_qwen3();
    toy.write(folder, 2);
    const std::string index = folder.file("model.safetensors.index.json");
    nlohmann::json json = nlohmann::json::parse(read_file(index));
    json["weight_map"]["mtp.fc.weight"] = ToyCheckpoint::shard_name(0, 2);
    folder.write("model.safetensors.index.json", json.dump());
    const Loaded phantom(folder.path());  // not needed: a warning
    ASSERT_EQ(phantom.report.warnings.size(), 1U);
    EXPECT_NE(phantom.report.warnings[0].find("mtp.fc.weight"), std::string::npos);

    ASSERT_EQ(json["weight_map"]["model.norm.weight"], ToyCheckpoint::shard_name(1, 2));
    json["weight_map"]["model.norm.weight"] = ToyCheckpoint::shard_name(0, 2);
    folder.write("model.safetensors.index.json", json.dump());
    EXPECT_TRUE(refuses([&] { const Loaded l(folder.path()); },
                        {"model.norm.weight", ToyCheckpoint::shard_name(0, 2), ToyCheckpoint::shard_name(1, 2)}));
    std::filesystem::remove(folder.file(ToyCheckpoint::shard_name(1, 2)));
    EXPECT_TRUE(refuses([&] { const Loaded l(folder.path()); }, {"missing", ToyCheckpoint::shard_name(1, 2)}));
}

TEST(TargetWeights, ALastShardCutByOneByteIsRefused) {
    const TemporaryFolder folder;
    testing::toy_qwen3().write(folder, 2);
    const std::string last = folder.file(ToyCheckpoint::shard_name(1, 2));
    std::filesystem::resize_file(last, std::filesystem::file_size(last) - 1);
    EXPECT_TRUE(refuses([&] { const Loaded l(folder.path()); }, {last, "cut short"}));
}

TEST(TargetWeights, WarnsWhenOffsetNormsLookLikePlainOnes) {
    const auto num_warnings = [](double mean) {
        ToyCheckpoint toy = testing::toy_hybrid();
        for (auto& [name, tensor] : toy.tensors) {
            const bool is_offset_norm = name.ends_with("norm.weight") && name.find("linear_attn") == std::string::npos;
            if (is_offset_norm) toy.add(name, tensor.shape, 0.1, mean);
        }
        return load(toy).report.warnings.size();
    };
    EXPECT_EQ(num_warnings(1), 1U);
    EXPECT_EQ(num_warnings(0), 0U);
    EXPECT_TRUE(load(testing::toy_qwen3()).report.warnings.empty());  // plain norms are near one by nature
}

TEST(TargetWeights, PartsOfATarget) {
    const TemporaryFolder folder;
    const ToyCheckpoint toy = testing::toy_hybrid();
    toy.write(folder);
    const Loaded head(folder.path(), TargetPart::kEmbeddingAndHead);
    EXPECT_EQ(head.report.loaded, 3);
    EXPECT_TRUE(head.weights.layers.empty());
    EXPECT_TRUE(equal(head.weights.final_norm, toy.tensors.at("model.norm.weight")));
    EXPECT_EQ(head.report.skipped_unused_layers, static_cast<std::int64_t>(toy.tensors.size()) - 3);
    EXPECT_TRUE(head.report.unexpected.empty());

    const Loaded two(folder.path(), TargetPart::kAll, 2);
    EXPECT_EQ(two.weights.layers.size(), 2U);
    EXPECT_TRUE(equal(two.weights.layers[1].down_proj, toy.tensors.at("model.layers.1.mlp.down_proj.weight")));
    EXPECT_EQ(two.report.loaded + two.report.skipped_unused_layers, static_cast<std::int64_t>(toy.tensors.size()));
    EXPECT_TRUE(two.report.unexpected.empty());
}

TEST(TargetWeights, TheMappedFileDoesNotStayResident) {
    const std::string folder = DFLASH_FIXTURES "/tiny-qwen3.5";
    const std::size_t before = resident_file_bytes();
    const Loaded loaded(folder);
    ASSERT_GT(before, 0U);
    constexpr std::size_t kMiB = 1 << 20;  // for code and headers; the shards take 14 MB
    EXPECT_LT(resident_file_bytes(), before + kMiB);
    EXPECT_EQ(loaded.report.skipped_unused_layers, 0);
    EXPECT_TRUE(loaded.report.warnings.empty());
}

}  // namespace
}  // namespace dflash
