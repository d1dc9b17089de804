// SPDX-License-Identifier: MIT
#include "draft/draft_spec.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "draft/draft_config.h"
#include "draft/draft_weights.h"
#include "draft_case.h"
#include "io/json.h"

namespace dflash::testing {
namespace {

using Ids = std::vector<std::int64_t>;

std::string public_fixture(const std::string& name) { return std::string(DFLASH_PUBLIC_FIXTURES) + "/" + name; }

// The message of the Error(kBadInput) that `run` throws; empty when it throws none.
template <typename Run>
std::string refusal(const Run& run) {
    try {
        run();
    } catch (const Error& error) {
        return error.kind() == ErrorKind::kBadInput ? error.what() : std::string("not bad input: ") + error.what();
    }
    return {};
}
::testing::AssertionResult mentions(const std::string& message, const std::string& part) {
    if (message.find(part) != std::string::npos) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "'" << message << "' does not mention '" << part << "'";
}

Json published_json() {
    const DraftSpec spec = toy_spec({sliding(6), kFull});
    return draft_spec_to_config_json(spec, toy_target(spec));
}
std::string refusal_of(const Json& config) {
    return refusal([&] { parse_draft_config(config, "x.json"); });
}

class TemporaryFile {
public:
    explicit TemporaryFile(const Json& content) : path_(::testing::TempDir() + "draft_spec_test.json") {
        std::ofstream(path_) << content.dump();
    }
    ~TemporaryFile() { std::filesystem::remove(path_); }
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

TEST(DefaultTaps, FollowThePublishedRule) {
    EXPECT_EQ(default_taps(28, 5), (Ids{1, 7, 13, 19, 25}));
    EXPECT_EQ(default_taps(32, 5), (Ids{1, 8, 15, 22, 29}));
    EXPECT_EQ(default_taps(36, 5), (Ids{1, 9, 17, 25, 33}));
    EXPECT_EQ(default_taps(40, 5), (Ids{1, 10, 19, 28, 37}));
    EXPECT_EQ(default_taps(64, 5), (Ids{1, 16, 31, 46, 61}));
    EXPECT_EQ(default_taps(64, 10), (Ids{1, 8, 14, 21, 28, 34, 41, 48, 54, 61}));
    EXPECT_EQ(default_taps(36, 1), (Ids{18}));
    EXPECT_EQ(default_taps(9, 3), (Ids{1, 3, 6}));   // 3.5 -> 1 + 2 (half to even)
    EXPECT_EQ(default_taps(11, 3), (Ids{1, 5, 8}));  // 4.5 -> 1 + 4
    EXPECT_EQ(default_taps(8, 5), (Ids{1, 2, 3, 4, 5}));
}

TEST(DefaultTaps, AlwaysIncreaseAndStayBelowTheLastLayer) {
    for (std::int64_t layers = 4; layers <= 100; ++layers) {
        const Ids taps = default_taps(layers, std::min<std::int64_t>(5, layers - 3));
        for (std::size_t i = 1; i < taps.size(); ++i) EXPECT_LT(taps[i - 1], taps[i]) << layers;
        EXPECT_LE(taps.back(), layers - 2) << layers;
    }
}

TargetConfig large_target(TargetFamily family, std::int64_t hidden, std::int64_t layers, std::int64_t vocabulary) {
    TargetConfig target = toy_target(toy_spec());
    target.family = family;
    target.model_type = family == TargetFamily::kHybrid ? "qwen3_5_text" : "qwen3";
    target.hidden = hidden;
    target.intermediate = 3 * hidden;
    target.layers = layers;
    target.vocabulary = vocabulary;
    target.head_dim = 256;
    target.rotary_dims = 64;  // a quarter of the target's head: never the drafter's
    target.max_positions = 262144;
    target.end_tokens = {248044};
    target.pad_token = 248044;
    return target;
}

TEST(MakeDraftSpec, HybridTargetsGetSlidingLayersAndALastFullOne) {
    const TargetConfig target = large_target(TargetFamily::kHybrid, 5120, 64, 248320);
    const DraftSpec spec = make_draft_spec(target, {}, -1);
    EXPECT_EQ(spec.layers, (std::vector<DraftLayerSpec>{sliding(2048), sliding(2048), sliding(2048), sliding(2048), kFull}));
    EXPECT_EQ(spec.taps, (Ids{1, 16, 31, 46, 61}));
    EXPECT_EQ(spec.mask_token, 248070);
    EXPECT_EQ(spec.heads, 32);
    EXPECT_EQ(spec.kv_heads, 8);
    EXPECT_EQ(spec.head_dim, 128);
    EXPECT_EQ(spec.intermediate, target.intermediate);
    EXPECT_EQ(spec.max_positions, 262144);
    EXPECT_EQ(spec.rope_theta, target.rope_theta);
    DraftGeometryFlags flags;
    flags.no_sliding_window = true;
    EXPECT_EQ(make_draft_spec(target, flags, -1).layers, std::vector<DraftLayerSpec>(5, kFull));
}

TEST(MakeDraftSpec, DenseTargetsGetFullLayers) {
    TargetConfig target = large_target(TargetFamily::kQwen3, 4096, 36, 151936);
    target.end_tokens = {151645};
    target.pad_token = 151643;
    const DraftSpec spec = make_draft_spec(target, {}, -1);
    EXPECT_EQ(spec.layers, std::vector<DraftLayerSpec>(5, kFull));
    EXPECT_EQ(spec.mask_token, 151669);
    DraftGeometryFlags flags;
    flags.sliding_window = 512;
    flags.draft_layers = 2;
    EXPECT_EQ(make_draft_spec(target, flags, -1).layers, (std::vector<DraftLayerSpec>{sliding(512), kFull}));
    flags.sliding_window = 15;
    EXPECT_TRUE(mentions(refusal([&] { make_draft_spec(target, flags, -1); }), "less than a block"));
}

TEST(MakeDraftSpec, SmallTargetsGetHeadsOf64) {
    TargetConfig target = large_target(TargetFamily::kQwen3, 256, 8, 4096);
    target.end_tokens = {4094};
    target.pad_token = 4092;
    const DraftSpec spec = make_draft_spec(target, {}, 4093);
    EXPECT_EQ(spec.head_dim, 64);
    EXPECT_EQ(spec.heads, 4);
    EXPECT_EQ(spec.kv_heads, 2);
    EXPECT_EQ(spec.taps, (Ids{1, 2, 3, 4, 5}));
    EXPECT_EQ(spec.mask_token, 4093);
    target.hidden = 320;  // 5 heads: kv heads must divide them
    EXPECT_EQ(make_draft_spec(target, {}, 4093).kv_heads, 1);
}

// The mask token must be given or known, a row of the embedding, and never pad or end.
TEST(MakeDraftSpec, RefusesABadMaskToken) {
    TargetConfig target = large_target(TargetFamily::kQwen3, 256, 8, 4096);
    target.end_tokens = {4094};
    target.pad_token = 4092;
    const auto with = [&](std::int32_t flag, std::int32_t tokenizer) {
        DraftGeometryFlags flags;
        flags.mask_token_id = flag;
        return refusal([&] { make_draft_spec(target, flags, tokenizer); });
    };
    EXPECT_TRUE(mentions(with(-1, -1), "--mask-token-id"));
    EXPECT_TRUE(mentions(with(4094, -1), "end token"));
    EXPECT_TRUE(mentions(with(4092, -1), "padding"));
    EXPECT_TRUE(mentions(with(4096, -1), "no row of the embedding"));
    EXPECT_EQ(with(4093, -1), "");
    EXPECT_EQ(with(-1, 4093), "");
    target.family = TargetFamily::kLlama3;
    target.vocabulary = 200000;
    EXPECT_TRUE(mentions(with(-1, -1), "--mask-token-id"));
}

TEST(MakeDraftSpec, RefusesBadTaps) {
    TargetConfig target = large_target(TargetFamily::kQwen3, 256, 8, 4096);
    target.end_tokens = {4094};
    target.pad_token = 4092;
    for (const Ids& taps : {Ids{1, 1}, Ids{3, 2}, Ids{-1, 2}, Ids{1, 7}}) {
        DraftGeometryFlags flags;
        flags.target_layer_ids = taps;
        EXPECT_TRUE(mentions(refusal([&] { make_draft_spec(target, flags, 4093); }), "target layer id"));
    }
}

TEST(MakeDraftSpec, DraftConfigFileWins) {
    TargetConfig target = large_target(TargetFamily::kHybrid, 256, 8, 4096);
    target.end_tokens = {4094};
    target.pad_token = 4092;
    DraftGeometryFlags flags;
    flags.block_size = 16;
    const auto with = [&](const Json& file) {
        const TemporaryFile written(file);
        flags.draft_config = written.path();
        return make_draft_spec(target, flags, 4093);
    };
    const DraftSpec small = with({{"num_hidden_layers", 2}, {"head_dim", 32}, {"num_attention_heads", 6}, {"num_key_value_heads", 3}});
    EXPECT_EQ(small.layers, (std::vector<DraftLayerSpec>{sliding(2048), kFull}));
    EXPECT_EQ(small.head_dim, 32);
    EXPECT_EQ(small.heads, 6);
    EXPECT_EQ(small.block_size, 16);
    EXPECT_EQ(small.mask_token, 4093);
    EXPECT_EQ(with({{"dflash_config", {{"block_size", 8}, {"target_layer_ids", {0, 4}}}}}).block_size, 8);
    EXPECT_EQ(with({{"rope_parameters", {{"rope_theta", 77.0}, {"rope_type", "default"}}}}).rope_theta, 77.0);
    EXPECT_EQ(with({{"layer_types", std::vector<std::string>(5, "full_attention")}}).layers, std::vector<DraftLayerSpec>(5, kFull));
    EXPECT_TRUE(mentions(refusal([&] { with({{"hidden_size", 128}}); }), "hidden size"));
    flags.mask_token_id = 17;
    EXPECT_TRUE(mentions(refusal([&] { with({{"dflash_config", {{"mask_token_id", 18}}}}); }), "--mask-token-id"));
}

TEST(DraftConfig, RoundTripsEveryExpressibleKind) {
    for (const std::vector<DraftLayerSpec>& layers : {std::vector<DraftLayerSpec>{kFull, kFull},
                                                      {sliding(6), sliding(6)},
                                                      {sliding(6), kFull},
                                                      {sliding(6, false), kFull},
                                                      {{DraftLayerKind::kFullAttention, 0, true}, sliding(9)}}) {
        for (const std::int64_t shift : {0, 1}) {
            DraftSpec spec = toy_spec(layers);
            spec.alignment_shift = shift;
            EXPECT_EQ(parse_draft_config(draft_spec_to_config_json(spec, toy_target(spec)), "x"), spec);
        }
    }
    const DraftSpec mixed = toy_spec({sliding(6, false), {DraftLayerKind::kFullAttention, 0, true}});
    EXPECT_TRUE(mentions(refusal([&] { draft_spec_to_config_json(mixed, toy_target(mixed)); }), "mixture"));
    const DraftSpec windows = toy_spec({sliding(6), sliding(7)});
    EXPECT_TRUE(mentions(refusal([&] { draft_spec_to_config_json(windows, toy_target(windows)); }), "different windows"));
}

// What servers assume by default is not written.
TEST(DraftConfig, WritesCausalityOnlyWhereItIsUnusual) {
    const auto written = [](const std::vector<DraftLayerSpec>& layers) {
        const DraftSpec spec = toy_spec(layers);
        return draft_spec_to_config_json(spec, toy_target(spec));
    };
    EXPECT_FALSE(written({sliding(6), kFull}).contains("is_causal"));
    EXPECT_FALSE(written({kFull}).contains("is_causal"));
    EXPECT_EQ(written({sliding(6, false), kFull})["is_causal"], false);
    EXPECT_FALSE(written({sliding(6, false)})["dflash_config"].contains("causal"));
    EXPECT_FALSE(written({sliding(6), kFull})["dflash_config"].contains("sample_from_anchor"));
}

TEST(DraftConfig, ReadsBlockSizeFromEitherPlace) {
    Json config = published_json();
    EXPECT_EQ(parse_draft_config(config, "x").block_size, 4);
    config["dflash_config"]["block_size"] = 5;
    EXPECT_TRUE(mentions(refusal_of(config), "block_size"));
    config.erase("block_size");
    EXPECT_EQ(parse_draft_config(config, "x").block_size, 5);
    config["dflash_config"].erase("block_size");
    EXPECT_TRUE(mentions(refusal_of(config), "block_size"));
    config["block_size"] = 65;
    EXPECT_TRUE(mentions(refusal_of(config), "2..64"));
}

TEST(DraftConfig, CausalityFollowsTheServersPrecedence) {
    const auto causal = [](const Json& config) {
        std::vector<bool> blocks;
        for (const DraftLayerSpec& layer : parse_draft_config(config, "x").layers) blocks.push_back(layer.causal_block);
        return blocks;
    };
    Json config = published_json();  // sliding, full
    EXPECT_EQ(causal(config), (std::vector<bool>{true, false}));
    config["dflash_config"]["causal"] = false;
    EXPECT_EQ(causal(config), (std::vector<bool>{false, false}));
    config["is_causal"] = true;
    EXPECT_EQ(causal(config), (std::vector<bool>{true, true}));
}

TEST(DraftConfig, ReadsLayersAndWindows) {
    Json config = published_json();
    config["use_sliding_window"] = false;
    EXPECT_TRUE(mentions(refusal_of(config), "use_sliding_window"));
    config["use_sliding_window"] = true;
    config["sliding_window"] = 3;
    EXPECT_TRUE(mentions(refusal_of(config), "less than a block"));
    config["sliding_window"] = nullptr;
    EXPECT_TRUE(mentions(refusal_of(config), "sliding_window"));
    config["dflash_config"]["swa_window_size"] = 9;
    EXPECT_EQ(parse_draft_config(config, "x").layers[0].window, 9);
    config["layer_types"] = {"sliding_attention"};
    EXPECT_TRUE(mentions(refusal_of(config), "layer_types"));
    config["layer_types"] = {"linear_attention", "full_attention"};
    EXPECT_TRUE(mentions(refusal_of(config), "linear_attention"));
    config.erase("layer_types");
    config["max_window_layers"] = 1;
    EXPECT_EQ(parse_draft_config(config, "x").layers, (std::vector<DraftLayerSpec>{kFull, sliding(9)}));
}

TEST(DraftConfig, RotationIsTheWholeHeadUnscaled) {
    Json config = published_json();
    config["rope_parameters"] = {{"rope_theta", 1e4}, {"rope_type", "default"}};
    EXPECT_EQ(parse_draft_config(config, "x").rope_theta, 1e4);
    config["rope_parameters"]["rope_theta"] = 5e5;
    EXPECT_TRUE(mentions(refusal_of(config), "rope_theta"));
    config.erase("rope_theta");
    EXPECT_EQ(parse_draft_config(config, "x").rope_theta, 5e5);
    config["rope_parameters"]["partial_rotary_factor"] = 0.25;
    EXPECT_TRUE(mentions(refusal_of(config), "partial_rotary_factor"));
    config["rope_parameters"] = {{"rope_theta", 1e4}, {"rope_type", "yarn"}};
    EXPECT_TRUE(mentions(refusal_of(config), "yarn"));
    config.erase("rope_parameters");
    EXPECT_TRUE(mentions(refusal_of(config), "rope_theta"));
    config = published_json();
    config["partial_rotary_factor"] = 0.25;
    EXPECT_TRUE(mentions(refusal_of(config), "partial_rotary_factor"));
    // What is not applied is not written.
    const std::string text = published_json().dump();
    for (const char* key : {"partial_rotary_factor", "mrope", "rope_parameters"}) EXPECT_EQ(text.find(key), std::string::npos) << key;
}

TEST(DraftConfig, RefusesRelativesByName) {
    const auto with = [](const std::string& pointer, const Json& value) {
        Json config = published_json();
        config[Json::json_pointer(pointer)] = value;
        return refusal_of(config);
    };
    EXPECT_TRUE(mentions(with("/architectures/0", "DFlash2DraftModel"), "DFlash 2"));
    EXPECT_TRUE(mentions(with("/dflash_config/selector_rank", 256), "DFlash 2"));
    EXPECT_TRUE(mentions(with("/architectures/0", "Qwen3DSparkModel"), "DSpark"));
    EXPECT_TRUE(mentions(with("/markov_rank", 256), "DSpark"));
    EXPECT_TRUE(mentions(with("/dflash_config/projector_type", "domino"), "Domino"));
    EXPECT_TRUE(mentions(with("/dflash_config/projector_type", "other"), "other"));
    EXPECT_TRUE(mentions(with("/model_type", "dflash"), "TorchSpec"));
    EXPECT_TRUE(mentions(with("/architectures/0", "Qwen3ForCausalLM"), "Qwen3ForCausalLM"));
    EXPECT_TRUE(mentions(with("/draft_vocab_size", 20), "pruned"));
    EXPECT_TRUE(mentions(with("/attention_bias", true), "attention_bias"));
    EXPECT_TRUE(mentions(with("/dflash_config/attention_sink_bias", true), "attention_sink_bias"));
    EXPECT_TRUE(mentions(with("/hidden_act", "gelu"), "gelu"));
    EXPECT_TRUE(mentions(with("/dflash_config/mask_token_id", 37), "no row"));
    EXPECT_TRUE(mentions(with("/dflash_config/target_layer_ids", Ids{1, 5}), "target layer id"));
    EXPECT_TRUE(mentions(with("/hidden_size", "16"), "hidden_size"));
    EXPECT_TRUE(mentions(with("/num_attention_heads", 3), "heads"));
    EXPECT_TRUE(mentions(refusal_of(Json::array()), "object"));
    Json config = published_json();
    config["dflash_config"]["sample_from_anchor"] = true;
    EXPECT_EQ(parse_draft_config(config, "x").alignment_shift, 1);
}

TEST(DraftConfig, SpeculatorsLayoutCountsStates) {
    for (const std::vector<DraftLayerSpec>& layers :
         {std::vector<DraftLayerSpec>{kFull, kFull}, {sliding(6), sliding(6)}, {sliding(6, false), sliding(6, false)}}) {
        DraftSpec spec = toy_spec(layers);
        const Json config = draft_spec_to_speculators_json(spec, toy_target(spec));
        EXPECT_EQ(config["aux_hidden_state_layer_ids"], (Ids{2, 4}));
        EXPECT_EQ(config["speculators_config"]["proposal_methods"][0]["speculative_tokens"], 3);
        DraftSpec expected = spec;
        expected.owns_embedding = expected.owns_head = true;
        expected.target_layers = 0;  // the layout does not say
        EXPECT_EQ(parse_draft_config(config, "x"), expected);
    }
    const DraftSpec mixed = toy_spec({sliding(6), kFull});
    EXPECT_TRUE(mentions(refusal([&] { draft_spec_to_speculators_json(mixed, toy_target(mixed)); }), "different attention kinds"));
    const DraftSpec causal = toy_spec({{DraftLayerKind::kFullAttention, 0, true}});
    EXPECT_TRUE(mentions(refusal([&] { draft_spec_to_speculators_json(causal, toy_target(causal)); }), "causal"));
}

TEST(DraftConfig, SpeculatorsRefusals) {
    const DraftSpec spec = toy_spec({sliding(6)});
    const Json config = draft_spec_to_speculators_json(spec, toy_target(spec));
    Json pruned = config;
    pruned["draft_vocab_size"] = 20;
    EXPECT_TRUE(mentions(refusal_of(pruned), "pruned"));
    Json eagle = config;
    eagle["speculators_model_type"] = "eagle3";
    EXPECT_TRUE(mentions(refusal_of(eagle), "eagle3"));
    Json partial = config;
    partial["transformer_layer_config"]["partial_rotary_factor"] = 0.25;
    EXPECT_TRUE(mentions(refusal_of(partial), "partial_rotary_factor"));
    Json silent = config;  // servers take an absent key for bidirectional
    silent.erase("sliding_window_non_causal");
    EXPECT_FALSE(parse_draft_config(silent, "x").layers[0].causal_block);
}

// What each consumer makes of the ids in the files: the same residual for all (docs/formats.md).
TEST(DraftConfig, LayerIdsNameTheSameTensorForEveryConsumer) {
    const DraftSpec spec = toy_spec({sliding(6)});  // residuals after target layers 1 and 3
    const TargetConfig target = toy_target(spec);
    const Json published = draft_spec_to_config_json(spec, target);
    const Json speculators = draft_spec_to_speculators_json(spec, target);
    const auto ids = published["dflash_config"]["target_layer_ids"].get<Ids>();
    const auto state_ids = speculators["aux_hidden_state_layer_ids"].get<Ids>();
    for (std::size_t i = 0; i < spec.taps.size(); ++i) {
        const std::int64_t residual_after = spec.taps[i];
        EXPECT_EQ(ids[i], residual_after);            // transformers: hidden_states[id + 1]
        EXPECT_EQ(ids[i] + 1, residual_after + 1);    // vLLM from this layout: auxiliary state id + 1 is the input of layer id + 1
        EXPECT_EQ(state_ids[i], residual_after + 1);  // vLLM from speculators files: auxiliary state id as it stands
    }
}

class PublicConfig : public ::testing::TestWithParam<const char*> {
protected:
    void SetUp() override {
        if (!std::filesystem::exists(public_fixture(GetParam()))) GTEST_SKIP() << "public fixtures are not here";
    }
};

// A drafter of the same shape, written by us, has the published keys and values.
TEST_P(PublicConfig, IsWrittenAsPublished) {
    const Json published = read_json_file(public_fixture(GetParam()));
    const DraftSpec spec = read_draft_spec(public_fixture(GetParam()));
    TargetConfig target = toy_target(spec);
    target.end_tokens = {published["eos_token_id"].get<std::int32_t>()};
    target.pad_token = published.value("pad_token_id", -1);
    const Json written = draft_spec_to_config_json(spec, target);
    EXPECT_EQ(parse_draft_config(written, "x"), spec);
    // Facts about the target's text or the writing library, not the drafter.
    const std::set<std::string> free = {"bos_token_id", "transformers_version", "tie_word_embeddings"};
    for (const auto& [key, value] : published.items()) {
        if (free.count(key) > 0) continue;
        EXPECT_EQ(written.value(key, Json("absent")), value) << key;
    }
    for (const auto& [key, value] : written.items()) EXPECT_TRUE(published.contains(key)) << key;
}

TEST_P(PublicConfig, HasThePublishedTensors) {
    const DraftSpec spec = read_draft_spec(public_fixture(GetParam()));
    const auto table = draft_tensor_table(spec);
    EXPECT_EQ(table.size(), 58U);
    std::set<std::string> names;
    for (const DraftTensorDecl& decl : table) names.insert(decl.name);
    std::set<std::string> expected = {"fc.weight", "hidden_norm.weight", "norm.weight"};
    for (int i = 0; i < 5; ++i) {
        for (const char* part :
             {"input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
              "self_attn.q_norm", "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
            expected.insert("layers." + std::to_string(i) + "." + part + ".weight");
        }
    }
    EXPECT_EQ(names, expected);
}
INSTANTIATE_TEST_SUITE_P(All, PublicConfig,
                         ::testing::Values("qwen3-4b-dflash.config.json", "qwen3-8b-dflash.config.json", "qwen3.5-4b-dflash.config.json",
                                           "qwen3.6-27b-dflash.config.json"));

// Shapes of the published Qwen3-8B drafter.
TEST(DraftTensorTable, ShapesOfTheEightBillionDrafter) {
    const std::string path = public_fixture("qwen3-8b-dflash.config.json");
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "public fixtures are not here";
    std::map<std::string, Shape> shapes;
    std::int64_t parameters = 0;
    for (const DraftTensorDecl& decl : draft_tensor_table(read_draft_spec(path))) {
        shapes[decl.name] = decl.shape;
        parameters += decl.shape.elements();
    }
    EXPECT_EQ(shapes["fc.weight"], (Shape{4096, 20480}));
    EXPECT_EQ(shapes["layers.4.self_attn.q_proj.weight"], (Shape{4096, 4096}));
    EXPECT_EQ(shapes["layers.4.self_attn.k_proj.weight"], (Shape{1024, 4096}));
    EXPECT_EQ(shapes["layers.0.self_attn.v_proj.weight"], (Shape{1024, 4096}));
    EXPECT_EQ(shapes["layers.0.self_attn.o_proj.weight"], (Shape{4096, 4096}));
    EXPECT_EQ(shapes["layers.0.self_attn.q_norm.weight"], (Shape{128}));
    EXPECT_EQ(shapes["layers.0.mlp.gate_proj.weight"], (Shape{12288, 4096}));
    EXPECT_EQ(shapes["layers.0.mlp.down_proj.weight"], (Shape{4096, 12288}));
    EXPECT_EQ(shapes["norm.weight"], (Shape{4096}));
    EXPECT_EQ(parameters / 10000000, 104);  // 1.05 billion
}

TEST(CheckDraftMatchesTarget, RefusesEachMismatch) {
    const DraftSpec spec = toy_spec();
    const auto with = [&](auto change) {
        TargetConfig target = toy_target(spec);
        change(target);
        return refusal([&] { check_draft_matches_target(spec, target, "the drafter"); });
    };
    EXPECT_EQ(with([](TargetConfig&) {}), "");
    EXPECT_TRUE(mentions(with([](TargetConfig& t) { t.hidden = 32; }), "hidden size"));
    EXPECT_TRUE(mentions(with([](TargetConfig& t) { t.vocabulary = 64; }), "vocabulary"));
    EXPECT_TRUE(mentions(with([](TargetConfig& t) { t.layers = 8; }), "layers"));
    EXPECT_TRUE(mentions(with([](TargetConfig& t) { t.end_tokens.push_back(36); }), "end token"));
    EXPECT_TRUE(mentions(with([](TargetConfig& t) { t.pad_token = 36; }), "padding"));
    DraftSpec unknown_depth = spec;
    unknown_depth.target_layers = 0;
    TargetConfig shallow = toy_target(spec);
    shallow.layers = 4;
    EXPECT_TRUE(mentions(refusal([&] { check_draft_matches_target(unknown_depth, shallow, "x"); }), "layer 3"));
}

}  // namespace
}  // namespace dflash::testing
