// SPDX-License-Identifier: MIT
#include "model/target_config.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "support/errors.h"
#include "support/toy_checkpoint.h"

namespace dflash {
namespace {

using nlohmann::json;
using testing::refuses;
using testing::TemporaryFolder;

constexpr auto kLinear = TargetLayerKind::kLinearAttention;
constexpr auto kFull = TargetLayerKind::kFullAttention;

TargetConfig read(const json& config) {
    const TemporaryFolder folder;
    return read_target_config(folder.write("config.json", config.dump()));
}

json changed(const testing::ToyCheckpoint& toy, const std::function<void(json&)>& change) {
    json config = toy.config;
    change(config);
    return config;
}

TEST(TargetConfig, ReadsTheBundledTargets) {
    const TargetConfig dense = read_target_config(DFLASH_FIXTURES "/tiny-qwen3");
    EXPECT_EQ(dense.family, TargetFamily::kQwen3);
    EXPECT_EQ(dense.layers, 6);
    EXPECT_EQ(dense.rotary_dims, 32);
    EXPECT_EQ(dense.rope_theta, 1e6);
    EXPECT_TRUE(dense.tied_head);
    EXPECT_EQ(dense.end_tokens, (std::vector<std::int32_t>{4094}));
    EXPECT_EQ(dense.pad_token, 4092);
    const TargetConfig hybrid = read_target_config(DFLASH_FIXTURES "/tiny-qwen3.5");
    EXPECT_EQ(hybrid.family, TargetFamily::kHybrid);
    EXPECT_EQ(hybrid.rotary_dims, 16);
    EXPECT_EQ(hybrid.layer_kinds[2], kLinear);
    EXPECT_EQ(hybrid.layer_kinds[3], kFull);
    EXPECT_EQ(hybrid.conv_channels(), 512);
    EXPECT_FALSE(hybrid.sigmoid_output_gate);
    EXPECT_TRUE(hybrid.bf16_rope_frequencies);
    EXPECT_FALSE(read(testing::toy_qwen3().config).bf16_rope_frequencies);
}

TEST(TargetConfig, NestedAndFlatFilesGiveTheSame) {
    const TargetConfig flat = read(testing::toy_hybrid().config);
    const TargetConfig nested = read(testing::toy_multimodal("model.language_model.").config);
    EXPECT_EQ(nested.architecture, "Qwen3_5ForConditionalGeneration");
    EXPECT_EQ(nested.family, flat.family);
    EXPECT_EQ(nested.hidden, flat.hidden);
    EXPECT_EQ(nested.layer_kinds, flat.layer_kinds);
    EXPECT_EQ(nested.value_heads, 4);
    EXPECT_EQ(nested.rotary_dims, 4);
    EXPECT_EQ(nested.end_tokens, (std::vector<std::int32_t>{319}));
    EXPECT_EQ(nested.forbidden_tokens, (std::vector<std::int32_t>{300}));
}

TEST(TargetConfig, LayerKindsComeFromTheIntervalWhenNotListed) {
    EXPECT_EQ(read(testing::toy_hybrid().config).layer_kinds, (std::vector<TargetLayerKind>{kLinear, kLinear, kLinear, kFull}));
    const json two = changed(testing::toy_hybrid(), [](json& c) { c["full_attention_interval"] = 2; });
    EXPECT_EQ(read(two).layer_kinds, (std::vector<TargetLayerKind>{kLinear, kFull, kLinear, kFull}));
    const json listed = changed(testing::toy_hybrid(), [](json& c) {
        c["layer_types"] = {"full_attention", "linear_attention", "linear_attention", "linear_attention"};
    });
    EXPECT_EQ(read(listed).layer_kinds, (std::vector<TargetLayerKind>{kFull, kLinear, kLinear, kLinear}));
}

TEST(TargetConfig, TheTieFlagCountsWhereverItStands) {
    json config = testing::toy_multimodal("model.").config;
    EXPECT_FALSE(read(config).tied_head);
    config["tie_word_embeddings"] = true;
    EXPECT_TRUE(read(config).tied_head);
    config.erase("tie_word_embeddings");
    config["text_config"]["tie_word_embeddings"] = true;
    EXPECT_TRUE(read(config).tied_head);
    config["tie_word_embeddings"] = false;
    EXPECT_TRUE(read(config).tied_head);
}

TEST(TargetConfig, NestedRopeParametersWinOverFlatOnes) {
    const json both = changed(testing::toy_hybrid(), [](json& c) {
        c["rope_theta"] = 5.0;
        c["partial_rotary_factor"] = 1.0;
    });
    EXPECT_EQ(read(both).rope_theta, 1e7);
    EXPECT_EQ(read(both).rotary_dims, 4);
    const json flat = changed(testing::toy_hybrid(), [](json& c) {
        c.erase("rope_parameters");
        c["rope_theta"] = 5.0;
        c["partial_rotary_factor"] = 0.5;
    });
    EXPECT_EQ(read(flat).rope_theta, 5.0);
    EXPECT_EQ(read(flat).rotary_dims, 8);
    const json split = changed(testing::toy_hybrid(), [](json& c) {
        c["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 2.0}};
        c["partial_rotary_factor"] = 0.5;
    });
    EXPECT_EQ(read(split).rotary_dims, 8);
    const json neither = changed(testing::toy_hybrid(), [](json& c) { c["rope_parameters"].erase("partial_rotary_factor"); });
    EXPECT_EQ(read(neither).rotary_dims, 4);  // the family's default, with a warning
    EXPECT_EQ(read(testing::toy_qwen3().config).rotary_dims, 16);
}

TEST(TargetConfig, Llama3RopeScaling) {
    const json flat = changed(testing::toy_llama(), [](json& c) {
        c.erase("head_dim");
        c["rope_scaling"] = {{"rope_type", "llama3"},
                             {"factor", 8.0},
                             {"low_freq_factor", 1.0},
                             {"high_freq_factor", 4.0},
                             {"original_max_position_embeddings", 8192}};
    });
    const TargetConfig config = read(flat);
    EXPECT_EQ(config.head_dim, 16);
    EXPECT_TRUE(config.rope_scaling.enabled);
    EXPECT_EQ(config.rope_scaling.factor, 8);
    EXPECT_EQ(config.rope_scaling.original_max_positions, 8192);
    EXPECT_FALSE(config.has_qk_norm());
    EXPECT_FALSE(read(testing::toy_llama().config).rope_scaling.enabled);
    const json nested = changed(testing::toy_llama(), [&](json& c) {
        c["rope_parameters"] = flat["rope_scaling"];
        c["rope_parameters"]["rope_theta"] = 3.0;
    });
    EXPECT_EQ(read(nested).rope_theta, 3.0);
    EXPECT_TRUE(read(nested).rope_scaling.enabled);
    for (const char* key : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
        json partial = flat;
        partial["rope_scaling"].erase(key);
        EXPECT_TRUE(refuses([&] { read(partial); }, {key, "missing"}));
    }
}

// Every setting that the forward pass depends on is read from the file: none has a default.
TEST(TargetConfig, RequiredKeysThatAreAbsentAreErrors) {
    const auto check = [](const testing::ToyCheckpoint& toy, const std::string& key) {
        EXPECT_TRUE(refuses([&] { read(changed(toy, [&](json& c) { c.erase(key); })); }, {"config.json", "'" + key + "'", "missing"}));
        EXPECT_TRUE(refuses([&] { read(changed(toy, [&](json& c) { c[key] = "many"; })); }, {"'" + key + "'", "\"many\""}));
        EXPECT_TRUE(refuses([&] { read(changed(toy, [&](json& c) { c[key] = -1; })); }, {"'" + key + "'", "-1"}));
    };
    for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "num_attention_heads",
                            "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "max_position_embeddings"}) {
        check(testing::toy_qwen3(), key);
    }
    for (const char* key :
         {"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"}) {
        check(testing::toy_hybrid(), key);
    }
    EXPECT_TRUE(refuses([&] { read(changed(testing::toy_qwen3(), [](json& c) { c.erase("model_type"); })); }, {"'model_type'"}));
    EXPECT_EQ(read(changed(testing::toy_qwen3(), [](json& c) { c["rms_norm_eps"] = 0.3; })).rms_norm_eps, 0.3);
}

TEST(TargetConfig, WhatIsNotBuiltIsRefusedByName) {
    struct Case {
        const char* key;
        json value;
        const char* fragment;
    };
    for (const Case& c :
         {Case{"model_type", "qwen3_moe", "qwen3_moe"},
          Case{"model_type", "qwen3_5_moe_text", "qwen3_5_moe_text"},
          Case{"model_type", "qwen3_next", "qwen3_next"},
          Case{"model_type", "gpt_oss", "gpt_oss"},
          Case{"model_type", "qwen4_exp", "qwen4_exp"},
          Case{"model_type", "bert", "'bert' is not supported; supported are"},
          Case{"architectures", {"DFlashDraftModel"}, "drafter"},
          Case{"quantization_config", {{"quant_method", "fp8"}}, "quantization_config"},
          Case{"layer_scale", true, "layer_scale"},
          Case{"attention_bias", true, "attention_bias"},
          Case{"attn_output_gate", false, "attn_output_gate"},
          Case{"use_sliding_window", true, "use_sliding_window"},
          Case{"num_experts", 8, "num_experts"},
          Case{"hidden_act", "gelu", "gelu"},
          Case{"output_gate_type", "tanh", "tanh"},
          Case{"layer_types", {"linear_attention", "sliding_attention", "full_attention", "full_attention"}, "sliding_attention"},
          Case{"layer_types", {"linear_attention"}, "1 layers"},
          Case{"rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 1e4}}, "'yarn'"},
          Case{"rope_parameters", {{"inv_freq_dtype", "float8"}, {"rope_theta", 1e4}}, "'float8'"},
          Case{"rope_parameters", 3, "rope_parameters"},
          Case{"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.19}}, "rotary"},
          Case{"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 1e300}}, "rotary"},
          Case{"num_key_value_heads", 3, "multiple"},
          Case{"linear_num_value_heads", 3, "multiple"},
          Case{"num_hidden_layers", 1000000000, "num_hidden_layers"},
          Case{"eos_token_id", "end", "eos_token_id"},
          Case{"text_config", 3, "text_config"}}) {
        const json config = changed(testing::toy_hybrid(), [&](json& j) { j[c.key] = c.value; });
        EXPECT_TRUE(refuses([&] { read(config); }, {"config.json", c.fragment})) << c.key << " " << c.value;
    }
    const json dense = changed(testing::toy_qwen3(), [](json& c) {
        c["layer_types"] = {"full_attention", "linear_attention", "full_attention", "full_attention"};
    });
    EXPECT_TRUE(refuses([&] { read(dense); }, {"layer_types[1]"}));
    EXPECT_TRUE(refuses([&] { read(json::array()); }, {"not an object"}));
    EXPECT_TRUE(refuses([&] { read_target_config("/absent/config.json"); }, {"/absent/config.json", "No such file"}));
}

TEST(TargetConfig, WhatTextOnlyExportsWriteIsAccepted) {
    for (const char* gate : {"silu", "swish", "sigmoid"}) {
        const TargetConfig config = read(changed(testing::toy_hybrid(), [&](json& c) { c["output_gate_type"] = gate; }));
        EXPECT_EQ(config.sigmoid_output_gate, std::string(gate) == "sigmoid");
    }
    const json plain = changed(testing::toy_qwen3(), [](json& c) {
        c["sliding_window"] = 4096;  // a width alone is not in use
        c["use_sliding_window"] = false;
        c["attention_bias"] = false;
        c["quantization_config"] = nullptr;
        c["attn_output_gate"] = true;
    });
    EXPECT_EQ(read(plain).layers, 4);
}

TEST(TargetConfig, EndTokensComeFromBothFiles) {
    const TemporaryFolder folder;
    json config = testing::toy_qwen3().config;
    config["eos_token_id"] = {7, 319};
    config["pad_token_id"] = nullptr;
    folder.write("config.json", config.dump());
    folder.write("generation_config.json", R"({"eos_token_id":[5,7,100000],"pad_token_id":9})");
    const TargetConfig read = read_target_config(folder.path());
    EXPECT_EQ(read.end_tokens, (std::vector<std::int32_t>{7, 319, 5}));  // one outside the vocabulary is left out
    EXPECT_EQ(read.pad_token, 9);
    EXPECT_EQ(read_target_config(folder.file("config.json")).end_tokens, read.end_tokens);
    folder.write("generation_config.json", "{");
    EXPECT_TRUE(refuses([&] { read_target_config(folder.path()); }, {"generation_config.json"}));
}

}  // namespace
}  // namespace dflash
