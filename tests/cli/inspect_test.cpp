// SPDX-License-Identifier: MIT
// `dflash inspect`, as a user runs it: on each kind of path, and on malformed ones.
#include <gtest/gtest.h>

#include <string>

#include "io/json.h"
#include "io/raw_safetensors.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"
#include "support/toy_checkpoint.h"

namespace dflash {
namespace {

using testing::ProgramResult;
using testing::run_dflash;
using testing::TemporaryFolder;

Json inspect(const std::string& path) {
    const ProgramResult result = run_dflash("inspect --json " + path);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return parse_json(result.output, "output");
}

// One line on stderr, exit code 2.
void expect_refused(const std::string& path, const std::string& fragment) {
    const ProgramResult result = run_dflash("inspect " + path);
    EXPECT_EQ(result.exit_code, 2) << path;
    EXPECT_EQ(result.output, "");
    EXPECT_NE(result.errors.find(fragment), std::string::npos) << result.errors;
    EXPECT_EQ(result.errors.find('\n'), result.errors.size() - 1) << result.errors;
}

TEST(InspectCommand, Targets) {
    const Json target = inspect(DFLASH_FIXTURES "/tiny-qwen3.5");
    EXPECT_EQ(target["kind"], "target");
    EXPECT_EQ(target["layers"], 8);
    EXPECT_EQ(target["linear_attention_layers"], 6);
    EXPECT_EQ(target["tied_head"], true);
    EXPECT_EQ(target["weights"]["files"], 3);
    EXPECT_EQ(target["weights"]["by_group"]["embedding"]["parameters"], 4096 * 256);
    EXPECT_EQ(target["weights"]["text_model"], target["weights"]["all"]);
    EXPECT_FALSE(target["weights"]["by_group"].contains("head"));

    const TemporaryFolder folder;
    testing::toy_multimodal("model.language_model.").write(folder, 2);
    const Json toy = inspect(folder.path());
    EXPECT_EQ(toy["weights"]["by_group"]["vision (skipped)"]["tensors"], 2);
    EXPECT_EQ(toy["weights"]["by_group"]["mtp (skipped)"]["tensors"], 1);
    EXPECT_EQ(toy["weights"]["by_group"]["head"]["tensors"], 1);
    EXPECT_EQ(inspect(folder.file("config.json"))["hidden"], 64);
    const ProgramResult text = run_dflash("inspect " DFLASH_FIXTURES "/tiny-qwen3");
    EXPECT_NE(text.output.find("vocabulary: 4,096\n"), std::string::npos) << text.output;
    EXPECT_NE(text.output.find("5,574,272 parameters, 11.1 MB (BF16 68)\n"), std::string::npos) << text.output;
}

TEST(InspectCommand, TensorFiles) {
    const Json file = inspect(DFLASH_FIXTURES "/tiny-qwen3/model.safetensors");
    EXPECT_EQ(file["kind"], "tensors");
    EXPECT_EQ(file["by_name"]["model.embed_tokens.weight"], "BF16 [4096,256]");
    const TemporaryFolder folder;
    folder.write("some.safetensors", testing::raw_safetensors(testing::one_tensor("F32", "[]", "[0,4]"), 4));
    EXPECT_EQ(inspect(folder.path())["by_name_dtype_and_shape"]["a F32 []"], 1);
}

TEST(InspectCommand, Drafters) {
    const TemporaryFolder folder;
    folder.write("config.json", R"({"architectures":["DFlashDraftModel"],"model_type":"qwen3","block_size":8,"num_target_layers":36,)"
                                R"("dflash_config":{"mask_token_id":151669,"target_layer_ids":[1,9,17]},"hidden_size":64,)"
                                R"("intermediate_size":96,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,)"
                                R"("head_dim":16,"vocab_size":151936,"rms_norm_eps":1e-6,"rope_theta":1000000,)"
                                R"("max_position_embeddings":4096,"sliding_window":32,"use_sliding_window":true,)"
                                R"("layer_types":["sliding_attention","full_attention"],"hidden_act":"silu","attention_bias":false})");
    const Json drafter = inspect(folder.path());
    EXPECT_EQ(drafter["kind"], "drafter");
    EXPECT_EQ(drafter["block_size"], 8);
    EXPECT_EQ(drafter["mask_token_id"], 151669);
    EXPECT_EQ(drafter["target_layer_ids"], Json({1, 9, 17}));
    EXPECT_EQ(drafter["layer_attention"], Json({"sliding 32 tokens", "full"}));
}

TEST(InspectCommand, RunsAndDataSets) {
    const TemporaryFolder run;
    run.write("metrics.jsonl",
              "{\"kind\":\"step\",\"step\":1}\n{\"kind\":\"eval\",\"step\":1}\n{\"kind\":\"step\",\"step\":2}\n{\"kind\":\"st");
    const Json report = inspect(run.path());
    EXPECT_EQ(report["kind"], "run");
    EXPECT_EQ(report["last_step"]["step"], 2);
    EXPECT_EQ(report["last_eval"]["step"], 1);

    const TemporaryFolder data;
    const std::string shard = testing::raw_safetensors("{}", 0);
    data.write("s.safetensors", shard);
    data.write("manifest.json",
               fmt::format(R"({{"format":"dflash-data","tokens":7,"shards":[{{"file":"s.safetensors","bytes":{}}}]}})", shard.size()));
    EXPECT_EQ(inspect(data.path())["tokens"], 7);
    EXPECT_EQ(inspect(data.path())["bytes"], shard.size());
    data.write("s.safetensors", shard + "x");
    expect_refused(data.path(), "s.safetensors");
}

TEST(InspectCommand, MalformedInputIsOneLineAndExitCode2) {
    const TemporaryFolder folder;
    expect_refused(folder.file("absent"), "no such file");
    expect_refused(folder.path(), "not a checkpoint, data set or run");
    expect_refused(folder.write("a.safetensors", testing::raw_safetensors(testing::one_tensor("F32", "[1]", "[4]"), 4)), "data_offsets");
    expect_refused(folder.write("b.safetensors", testing::little_endian(std::uint64_t{1} << 63)), "header length");
    expect_refused(folder.write("c.json", "{"), "not valid JSON");
    expect_refused(folder.write("d.json", R"({"model_type":"qwen4_exp"})"), "qwen4_exp");

    const TemporaryFolder toy_folder;
    testing::ToyCheckpoint toy = testing::toy_qwen3();
    toy.tensors.erase("model.layers.2.mlp.up_proj.weight");
    toy.write(toy_folder);
    expect_refused(toy_folder.path(), "model.layers.2.mlp.up_proj.weight");
    toy_folder.write("model.safetensors.index.json", R"({"weight_map":{"x":"gone.safetensors"}})");
    expect_refused(toy_folder.path(), "gone.safetensors");
}

}  // namespace
}  // namespace dflash
