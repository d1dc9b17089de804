// SPDX-License-Identifier: MIT
// Toy targets that tests write themselves: 4 layers, hidden 64, 4 heads (2 kv heads) of 16, vocabulary 320; dense (Qwen3, Llama 3) or
// hybrid (three delta-rule layers, one full). A test edits `config` and `tensors`, then writes the folder in one or more shards.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/rng.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "support/temporary_folder.h"

namespace dflash::testing {

struct ToyTensor {
    std::vector<std::int64_t> shape;
    std::vector<float> values;
    std::string dtype = "F32";  // or "BF16", "F16": how write() stores the values
};

struct ToyCheckpoint {
    nlohmann::json config;
    std::map<std::string, ToyTensor> tensors;  // names as in the files

    // Random values around `mean`, from the name alone.
    void add(const std::string& name, const std::vector<std::int64_t>& shape, double scale, double mean = 0) {
        std::uint64_t key = 7;
        for (const char c : name) key = key * 131 + static_cast<unsigned char>(c);
        Philox rng(1, key);
        std::int64_t count = 1;
        for (const std::int64_t d : shape) count *= d;
        ToyTensor& tensor = tensors[name];
        tensor.shape = shape;
        tensor.values.resize(static_cast<std::size_t>(count));
        // Rounded to bf16, so that every storage type holds the same values; f16 too, at these magnitudes.
        for (float& v : tensor.values) v = bf16_to_float(float_to_bf16(static_cast<float>(mean + scale * rng.next_normal())));
    }

    // "model." -> `prefix` in every name below it; an untied head too when the prefix is that of a nested model.
    void set_prefix(const std::string& prefix) {
        std::map<std::string, ToyTensor> renamed;
        for (auto& [name, tensor] : tensors) renamed[name.rfind("model.", 0) == 0 ? prefix + name.substr(6) : name] = std::move(tensor);
        tensors = std::move(renamed);
    }

    void write(const TemporaryFolder& folder, std::size_t shards = 1) const {
        folder.write("config.json", config.dump(1));
        nlohmann::json weight_map;
        std::size_t index = 0;
        std::vector<std::map<std::string, ToyTensor>> parts(shards);
        for (const auto& [name, tensor] : tensors) {
            const std::size_t shard = index++ * shards / tensors.size();
            parts[shard][name] = tensor;
            weight_map[name] = shard_name(shard, shards);
        }
        for (std::size_t i = 0; i < shards; ++i) write_shard(folder.file(shard_name(i, shards)), parts[i]);
        if (shards > 1) folder.write("model.safetensors.index.json", nlohmann::json{{"weight_map", weight_map}}.dump());
    }
    static std::string shard_name(std::size_t i, std::size_t shards) {
        return shards == 1 ? "model.safetensors" : "model-" + std::to_string(i + 1) + "-of-" + std::to_string(shards) + ".safetensors";
    }

private:
    // Exact for normal half-precision values that bf16 holds too.
    static std::uint16_t to_half(float value) {
        const auto bits = std::bit_cast<std::uint32_t>(value);
        const auto exponent = static_cast<int>((bits >> 23) & 0xff) - 112;
        const std::uint32_t sign = (bits >> 16) & 0x8000;
        if (exponent <= 0) return static_cast<std::uint16_t>(sign);
        return static_cast<std::uint16_t>(sign | (static_cast<std::uint32_t>(exponent) << 10) | ((bits >> 13) & 0x3ff));
    }
    static void write_shard(const std::string& path, const std::map<std::string, ToyTensor>& part) {
        std::vector<SafetensorsWriter::Declared> declared;
        for (const auto& [name, tensor] : part) declared.push_back({name, tensor.dtype, tensor.shape});
        SafetensorsWriter writer(path, declared, {{"format", "pt"}});
        for (const auto& [name, tensor] : part) {
            if (tensor.dtype == "F32") {
                writer.write(name, tensor.values.data(), tensor.values.size() * sizeof(float));
                continue;
            }
            std::vector<std::uint16_t> half(tensor.values.size());
            std::transform(tensor.values.begin(), tensor.values.end(), half.begin(), tensor.dtype == "BF16" ? float_to_bf16 : to_half);
            writer.write(name, half.data(), half.size() * sizeof(std::uint16_t));
        }
        writer.finish();
    }
};

inline constexpr std::int64_t kToyHidden = 64, kToyHeads = 4, kToyKvHeads = 2, kToyHeadDim = 16, kToyFfn = 96, kToyVocabulary = 320,
                              kToyLayers = 4;

// What all kinds share. `gated`: query projections carry an output gate; `norm_mean`: 0 for norms stored as offsets from one.
inline ToyCheckpoint toy_base(const std::vector<bool>& is_full, bool has_qk_norm, bool gated, double norm_mean) {
    ToyCheckpoint toy;
    toy.config = {{"hidden_size", kToyHidden},        {"intermediate_size", kToyFfn},
                  {"num_hidden_layers", kToyLayers},  {"vocab_size", kToyVocabulary},
                  {"num_attention_heads", kToyHeads}, {"num_key_value_heads", kToyKvHeads},
                  {"head_dim", kToyHeadDim},          {"rms_norm_eps", 1e-6},
                  {"max_position_embeddings", 2048},  {"hidden_act", "silu"},
                  {"tie_word_embeddings", false},     {"eos_token_id", 319}};
    const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
        toy.add(name, {rows, columns}, 1 / std::sqrt(static_cast<double>(columns)));
    };
    matrix("model.embed_tokens.weight", kToyVocabulary, kToyHidden);
    matrix("lm_head.weight", kToyVocabulary, kToyHidden);
    toy.add("model.norm.weight", {kToyHidden}, 0.1, norm_mean);
    for (std::size_t i = 0; i < is_full.size(); ++i) {
        const std::string layer = "model.layers." + std::to_string(i) + ".";
        toy.add(layer + "input_layernorm.weight", {kToyHidden}, 0.1, norm_mean);
        toy.add(layer + "post_attention_layernorm.weight", {kToyHidden}, 0.1, norm_mean);
        matrix(layer + "mlp.gate_proj.weight", kToyFfn, kToyHidden);
        matrix(layer + "mlp.up_proj.weight", kToyFfn, kToyHidden);
        matrix(layer + "mlp.down_proj.weight", kToyHidden, kToyFfn);
        if (!is_full[i]) continue;
        const std::string attention = layer + "self_attn.";
        matrix(attention + "q_proj.weight", kToyHeads * kToyHeadDim * (gated ? 2 : 1), kToyHidden);
        matrix(attention + "k_proj.weight", kToyKvHeads * kToyHeadDim, kToyHidden);
        matrix(attention + "v_proj.weight", kToyKvHeads * kToyHeadDim, kToyHidden);
        matrix(attention + "o_proj.weight", kToyHidden, kToyHeads * kToyHeadDim);
        if (!has_qk_norm) continue;
        toy.add(attention + "q_norm.weight", {kToyHeadDim}, 0.1, norm_mean);
        toy.add(attention + "k_norm.weight", {kToyHeadDim}, 0.1, norm_mean);
    }
    return toy;
}

inline ToyCheckpoint toy_qwen3() {
    ToyCheckpoint toy = toy_base({true, true, true, true}, true, false, 1);
    toy.config.update({{"architectures", {"Qwen3ForCausalLM"}}, {"model_type", "qwen3"}, {"rope_theta", 1e6}});
    return toy;
}

inline ToyCheckpoint toy_llama() {
    ToyCheckpoint toy = toy_base({true, true, true, true}, false, false, 1);
    toy.config.update({{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}, {"rope_theta", 5e5}});
    return toy;
}

// Text-only layout (flat config, prefix "model."); nk = 2, nv = 4, dk = dv = 16, K = 4.
inline ToyCheckpoint toy_hybrid() {
    ToyCheckpoint toy = toy_base({false, false, false, true}, true, true, 0);
    constexpr std::int64_t kKeyHeads = 2, kValueHeads = 4, kDim = 16, kTaps = 4;
    constexpr std::int64_t kChannels = 2 * kKeyHeads * kDim + kValueHeads * kDim;
    toy.config.update({{"architectures", {"Qwen3_5ForCausalLM"}},
                       {"model_type", "qwen3_5_text"},
                       {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e7}, {"partial_rotary_factor", 0.25}}},
                       {"linear_num_key_heads", kKeyHeads},
                       {"linear_num_value_heads", kValueHeads},
                       {"linear_key_head_dim", kDim},
                       {"linear_value_head_dim", kDim},
                       {"linear_conv_kernel_dim", kTaps}});
    const double scale = 1 / std::sqrt(static_cast<double>(kToyHidden));
    for (std::int64_t i = 0; i < 3; ++i) {
        const std::string delta = "model.layers." + std::to_string(i) + ".linear_attn.";
        toy.add(delta + "in_proj_qkv.weight", {kChannels, kToyHidden}, scale);
        toy.add(delta + "in_proj_z.weight", {kValueHeads * kDim, kToyHidden}, scale);
        toy.add(delta + "in_proj_b.weight", {kValueHeads, kToyHidden}, scale);
        toy.add(delta + "in_proj_a.weight", {kValueHeads, kToyHidden}, scale);
        toy.add(delta + "conv1d.weight", {kChannels, 1, kTaps}, 0.5);
        toy.add(delta + "A_log", {kValueHeads}, 0.5, 1);
        toy.add(delta + "dt_bias", {kValueHeads}, 1, -2);
        toy.add(delta + "norm.weight", {kDim}, 0.1, 1);
        toy.add(delta + "out_proj.weight", {kToyHidden, kValueHeads * kDim}, 0.125);
    }
    return toy;
}

// The same hybrid as a multimodal checkpoint: config nested under text_config, names under `prefix`, vision and MTP tensors beside.
inline ToyCheckpoint toy_multimodal(const std::string& prefix) {
    ToyCheckpoint toy = toy_hybrid();
    toy.set_prefix(prefix);
    toy.config = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                  {"model_type", "qwen3_5"},
                  {"text_config", toy.config},
                  {"vision_config", {{"depth", 1}}},
                  {"image_token_id", 300},
                  {"tie_word_embeddings", false}};
    toy.add("model.visual.blocks.0.attn.qkv.weight", {6, 4}, 1);
    toy.add("model.visual.pos_embed.weight", {6, 4}, 1);
    toy.add("mtp.fc.weight", {kToyHidden, 2 * kToyHidden}, 1);
    return toy;
}

}  // namespace dflash::testing
