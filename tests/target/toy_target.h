// SPDX-License-Identifier: MIT
// Small random targets of each family, written as checkpoints under any of the name layouts, and their forward pass in double, written
// from the equations with plain loops: it shares nothing with src/target but the scalar references of single ops.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/rng.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "kernels/ref/causal_attention.h"
#include "kernels/ref/delta_rule.h"

namespace dflash::testing {

struct ToyTensor {
    std::vector<std::int64_t> shape;
    std::vector<float> values;
};

struct ToyTarget {
    Json config;                               // flat
    std::map<std::string, ToyTensor> tensors;  // names without prefix
    bool zero_centred() const { return config["model_type"] == "qwen3_5"; }
    std::int64_t number(const char* key) const { return config[key].get<std::int64_t>(); }
};

namespace toy {

enum class Kind { kQwen3, kHybrid, kLlama3 };

inline Json base_config(Kind kind) {
    Json c = {{"vocab_size", 97},
              {"hidden_size", 48},
              {"intermediate_size", 80},
              {"num_hidden_layers", 5},
              {"num_attention_heads", 6},
              {"num_key_value_heads", 2},
              {"head_dim", 16},
              {"rms_norm_eps", 1e-6},
              {"max_position_embeddings", 4096},
              {"tie_word_embeddings", false},
              {"eos_token_id", 96},
              {"rope_theta", 1e4}};
    if (kind == Kind::kQwen3) {
        c["architectures"] = {"Qwen3ForCausalLM"};
        c["model_type"] = "qwen3";
    } else if (kind == Kind::kLlama3) {
        c["architectures"] = {"LlamaForCausalLM"};
        c["model_type"] = "llama";
        c["rope_scaling"] = {{"rope_type", "llama3"},
                             {"factor", 8.0},
                             {"low_freq_factor", 1.0},
                             {"high_freq_factor", 4.0},
                             {"original_max_position_embeddings", 256}};
    } else {
        c["architectures"] = {"Qwen3_5ForCausalLM"};
        c["model_type"] = "qwen3_5";
        c["partial_rotary_factor"] = 0.5;
        c["linear_num_key_heads"] = 2;
        c["linear_num_value_heads"] = 6;
        c["linear_key_head_dim"] = 16;
        c["linear_value_head_dim"] = 24;
        c["linear_conv_kernel_dim"] = 4;
        c["layer_types"] = {"linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"};
    }
    return c;
}

// Draws of a kind that leaves no part of the model trivial: norms away from one, decays from short to long. All are bf16 values, so that every
// device holds the same weights.
class Filler {
public:
    explicit Filler(std::uint64_t seed) : rng_(seed, 5) {}
    ToyTensor normal(std::vector<std::int64_t> shape, double scale, double mean = 0) {
        std::int64_t n = 1;
        for (const std::int64_t d : shape) n *= d;
        ToyTensor tensor{std::move(shape), std::vector<float>(static_cast<std::size_t>(n))};
        for (float& v : tensor.values) v = bf16_to_float(float_to_bf16(static_cast<float>(mean + scale * rng_.next_normal())));
        return tensor;
    }
    ToyTensor matrix(std::int64_t out, std::int64_t in) { return normal({out, in}, 1.0 / std::sqrt(static_cast<double>(in))); }
    ToyTensor norm(std::int64_t n, bool zero_centred) { return normal({n}, 0.1, zero_centred ? 0.0 : 1.0); }

private:
    Philox rng_;
};

inline bool is_delta(const ToyTarget& toy, std::int64_t layer) {
    return toy.config.contains("layer_types") && toy.config["layer_types"][static_cast<std::size_t>(layer)] == "linear_attention";
}

}  // namespace toy

inline ToyTarget make_toy_target(toy::Kind kind, std::uint64_t seed = 1) {
    ToyTarget t{toy::base_config(kind), {}};
    toy::Filler fill(seed);
    const bool zero = t.zero_centred();
    const std::int64_t c = t.number("hidden_size"), f = t.number("intermediate_size"), v = t.number("vocab_size");
    const std::int64_t h = t.number("num_attention_heads"), g = t.number("num_key_value_heads"), d = t.number("head_dim");
    t.tensors["embed_tokens.weight"] = fill.normal({v, c}, 1.0);
    t.tensors["norm.weight"] = fill.norm(c, zero);
    t.tensors["lm_head.weight"] = fill.matrix(v, c);
    for (std::int64_t i = 0; i < t.number("num_hidden_layers"); ++i) {
        const std::string p = "layers." + std::to_string(i) + ".";
        t.tensors[p + "input_layernorm.weight"] = fill.norm(c, zero);
        t.tensors[p + "post_attention_layernorm.weight"] = fill.norm(c, zero);
        t.tensors[p + "mlp.gate_proj.weight"] = fill.matrix(f, c);
        t.tensors[p + "mlp.up_proj.weight"] = fill.matrix(f, c);
        t.tensors[p + "mlp.down_proj.weight"] = fill.matrix(c, f);
        if (toy::is_delta(t, i)) {
            const std::int64_t nk = t.number("linear_num_key_heads"), nv = t.number("linear_num_value_heads");
            const std::int64_t dk = t.number("linear_key_head_dim"), dv = t.number("linear_value_head_dim");
            const std::int64_t channels = 2 * nk * dk + nv * dv;
            const std::string a = p + "linear_attn.";
            t.tensors[a + "in_proj_qkv.weight"] = fill.matrix(channels, c);
            t.tensors[a + "in_proj_z.weight"] = fill.matrix(nv * dv, c);
            t.tensors[a + "in_proj_b.weight"] = fill.matrix(nv, c);
            t.tensors[a + "in_proj_a.weight"] = fill.matrix(nv, c);
            t.tensors[a + "conv1d.weight"] = fill.normal({channels, 1, t.number("linear_conv_kernel_dim")}, 0.5);
            t.tensors[a + "A_log"] = fill.normal({nv}, 1.0, 0.5);
            t.tensors[a + "dt_bias"] = fill.normal({nv}, 1.5, -3.0);
            t.tensors[a + "norm.weight"] = fill.norm(dv, false);
            t.tensors[a + "out_proj.weight"] = fill.matrix(c, nv * dv);
        } else {
            const std::string a = p + "self_attn.";
            t.tensors[a + "q_proj.weight"] = fill.matrix(h * d * (zero ? 2 : 1), c);
            t.tensors[a + "k_proj.weight"] = fill.matrix(g * d, c);
            t.tensors[a + "v_proj.weight"] = fill.matrix(g * d, c);
            t.tensors[a + "o_proj.weight"] = fill.matrix(c, h * d);
            if (kind != toy::Kind::kLlama3) {
                t.tensors[a + "q_norm.weight"] = fill.norm(d, zero);
                t.tensors[a + "k_norm.weight"] = fill.norm(d, zero);
            }
        }
    }
    return t;
}

// How a checkpoint spells its names.
enum class ToyLayout { kTextOnly, kVisionLanguage };

inline void save_toy_target(const ToyTarget& toy, const std::string& folder, ToyLayout layout = ToyLayout::kTextOnly) {
    std::filesystem::create_directories(folder);
    Json config = toy.config;
    std::map<std::string, ToyTensor> tensors;
    const bool nested = layout == ToyLayout::kVisionLanguage;
    for (const auto& [name, tensor] : toy.tensors) {
        tensors[name == "lm_head.weight" ? name : (nested ? "model.language_model." : "model.") + name] = tensor;
    }
    if (nested) {
        tensors["model.visual.patch_embed.proj.weight"] = {{3, 2}, std::vector<float>(6, 1.0F)};
        tensors["mtp.fc.weight"] = {{2, 4}, std::vector<float>(8, 1.0F)};
        Json text = toy.config;
        text["model_type"] = "qwen3_5_text";
        config = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                  {"model_type", "qwen3_5"},
                  {"text_config", text},
                  {"vision_config", Json::object()}};
    }
    write_file_atomically(folder + "/config.json", config.dump());
    std::vector<SafetensorsWriter::Declared> declared;
    for (const auto& [name, tensor] : tensors) declared.push_back({name, "F32", tensor.shape});
    SafetensorsWriter writer(folder + "/model.safetensors", declared);
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor.values.data(), tensor.values.size() * sizeof(float));
    writer.finish();
}

namespace toy {

using Rows = std::vector<std::vector<double>>;  // (tokens, columns)

class Reference {
public:
    explicit Reference(const ToyTarget& target) : t_(target) {}

    // [0] the embedding, [n + 1] the residual after layer n, then the state after the last norm, then logits.
    std::vector<Rows> run(const std::vector<std::int32_t>& ids) const {
        const auto c = static_cast<std::size_t>(t_.number("hidden_size"));
        Rows x;
        for (const std::int32_t id : ids) {
            const float* row = values("embed_tokens.weight") + static_cast<std::size_t>(id) * c;
            x.emplace_back(row, row + c);
        }
        std::vector<Rows> states = {x};
        for (std::int64_t i = 0; i < t_.number("num_hidden_layers"); ++i) {
            const std::string p = "layers." + std::to_string(i) + ".";
            const Rows h = norm(x, p + "input_layernorm.weight", t_.zero_centred());
            add(x, is_delta(t_, i) ? delta(h, p + "linear_attn.") : attention(h, p + "self_attn."));
            add(x, feed_forward(norm(x, p + "post_attention_layernorm.weight", t_.zero_centred()), p + "mlp."));
            states.push_back(x);
        }
        states.push_back(norm(x, "norm.weight", t_.zero_centred()));
        states.push_back(linear(states.back(), "lm_head.weight"));
        return states;
    }

private:
    const float* values(const std::string& name) const { return t_.tensors.at(name).values.data(); }
    static void add(Rows& x, const Rows& y) {
        for (std::size_t i = 0; i < x.size(); ++i) {
            for (std::size_t j = 0; j < x[i].size(); ++j) x[i][j] += y[i][j];
        }
    }
    Rows linear(const Rows& x, const std::string& name) const {
        const ToyTensor& w = t_.tensors.at(name);
        const auto out = static_cast<std::size_t>(w.shape[0]), in = static_cast<std::size_t>(w.shape[1]);
        Rows y(x.size(), std::vector<double>(out));
        for (std::size_t i = 0; i < x.size(); ++i) {
            for (std::size_t o = 0; o < out; ++o) {
                for (std::size_t j = 0; j < in; ++j) y[i][o] += static_cast<double>(w.values[o * in + j]) * x[i][j];
            }
        }
        return y;
    }
    void norm_in_place(double* x, std::size_t n, const std::string& name, bool zero_centred) const {
        double squares = 0;
        for (std::size_t j = 0; j < n; ++j) squares += x[j] * x[j];
        const double factor = 1.0 / std::sqrt(squares / static_cast<double>(n) + t_.config["rms_norm_eps"].get<double>());
        for (std::size_t j = 0; j < n; ++j) x[j] *= factor * (static_cast<double>(values(name)[j]) + (zero_centred ? 1.0 : 0.0));
    }
    Rows norm(Rows x, const std::string& name, bool zero_centred) const {
        for (auto& row : x) norm_in_place(row.data(), row.size(), name, zero_centred);
        return x;
    }
    Rows feed_forward(const Rows& h, const std::string& p) const {
        Rows gate = linear(h, p + "gate_proj.weight");
        const Rows up = linear(h, p + "up_proj.weight");
        for (std::size_t i = 0; i < gate.size(); ++i) {
            for (std::size_t j = 0; j < gate[i].size(); ++j) gate[i][j] *= ref::sigmoid(gate[i][j]) * up[i][j];
        }
        return linear(gate, p + "down_proj.weight");
    }
    double frequency(std::size_t i, std::size_t rotary) const {
        const double plain = std::pow(t_.config["rope_theta"].get<double>(), -2.0 * static_cast<double>(i) / static_cast<double>(rotary));
        if (!t_.config.contains("rope_scaling")) return plain;
        const Json& s = t_.config["rope_scaling"];
        const double factor = s["factor"], low = s["low_freq_factor"], high = s["high_freq_factor"];
        const double original = s["original_max_position_embeddings"], wave = 2.0 * 3.14159265358979323846 / plain;
        if (wave < original / high) return plain;
        if (wave > original / low) return plain / factor;
        const double smooth = (original / wave - low) / (high - low);
        return plain * ((1.0 - smooth) / factor + smooth);
    }
    void rotate(double* x, std::size_t head_dim, std::size_t position) const {
        const double share = t_.config.value("partial_rotary_factor", 1.0);
        const auto rotary = static_cast<std::size_t>(static_cast<double>(head_dim) * share);
        for (std::size_t i = 0; i < rotary / 2; ++i) {
            const double angle = static_cast<double>(position) * frequency(i, rotary);
            const double a = x[i], b = x[i + rotary / 2];
            x[i] = a * std::cos(angle) - b * std::sin(angle);
            x[i + rotary / 2] = b * std::cos(angle) + a * std::sin(angle);
        }
    }
    // Heads of x, normed (if the model norms them) and rotated; head i begins at column i * stride.
    std::vector<double> heads(const Rows& x, std::int64_t count, std::int64_t stride, const std::string& norm_name, bool rotated) const {
        const auto d = static_cast<std::size_t>(t_.number("head_dim"));
        std::vector<double> result;
        for (std::size_t token = 0; token < x.size(); ++token) {
            for (std::int64_t i = 0; i < count; ++i) {
                std::vector<double> head(x[token].begin() + i * stride, x[token].begin() + i * stride + static_cast<std::int64_t>(d));
                if (rotated && t_.tensors.count(norm_name) != 0) norm_in_place(head.data(), d, norm_name, t_.zero_centred());
                if (rotated) rotate(head.data(), d, token);
                result.insert(result.end(), head.begin(), head.end());
            }
        }
        return result;
    }
    Rows attention(const Rows& h, const std::string& p) const {
        const std::int64_t heads_count = t_.number("num_attention_heads"), kv = t_.number("num_key_value_heads"), d = t_.number("head_dim");
        const bool gated = t_.zero_centred();
        const Rows projected = linear(h, p + "q_proj.weight");
        const auto q = heads(projected, heads_count, gated ? 2 * d : d, p + "q_norm.weight", true);
        const auto k = heads(linear(h, p + "k_proj.weight"), kv, d, p + "k_norm.weight", true);
        const auto v = heads(linear(h, p + "v_proj.weight"), kv, d, "", false);
        std::vector<std::int32_t> begin(h.size(), 0), end;
        for (std::size_t i = 0; i < h.size(); ++i) end.push_back(static_cast<std::int32_t>(i) + 1);
        std::vector<double> out(q.size());
        ref::causal_attention<double>({static_cast<std::int64_t>(h.size()), heads_count, kv, d}, q.data(), k.data(), v.data(), begin.data(),
                                      end.data(), 1.0 / std::sqrt(static_cast<double>(d)), out.data());
        const auto width = static_cast<std::size_t>(heads_count * d);
        Rows mixed(h.size(), std::vector<double>(width));
        for (std::size_t i = 0; i < h.size(); ++i) {
            for (std::size_t j = 0; j < width; ++j) {
                const std::size_t head = j / static_cast<std::size_t>(d), dim = j % static_cast<std::size_t>(d);
                const double gate =
                    gated ? ref::sigmoid(projected[i][head * 2 * static_cast<std::size_t>(d) + static_cast<std::size_t>(d) + dim]) : 1.0;
                mixed[i][j] = out[i * width + j] * gate;
            }
        }
        return linear(mixed, p + "o_proj.weight");
    }
    Rows delta(const Rows& h, const std::string& p) const {
        const std::int64_t nk = t_.number("linear_num_key_heads"), nv = t_.number("linear_num_value_heads");
        const std::int64_t dk = t_.number("linear_key_head_dim"), dv = t_.number("linear_value_head_dim");
        const std::int64_t channels = 2 * nk * dk + nv * dv, tokens = static_cast<std::int64_t>(h.size());
        const auto flat = [](const Rows& rows) {
            std::vector<double> all;
            for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
            return all;
        };
        const auto doubles = [&](const std::string& name) {
            const auto& from = t_.tensors.at(name).values;
            return std::vector<double>(from.begin(), from.end());
        };
        const auto u = flat(linear(h, p + "in_proj_qkv.weight"));
        std::vector<double> qkv(u.size());
        ref::causal_conv_silu<double>(tokens, channels, t_.number("linear_conv_kernel_dim"), u.data(), doubles(p + "conv1d.weight").data(),
                                      nullptr, qkv.data());
        std::vector<double> state(static_cast<std::size_t>(nv * dk * dv)), out(static_cast<std::size_t>(tokens * nv * dv));
        ref::delta_rule<double>({tokens, nk, nv, dk, dv}, qkv.data(), flat(linear(h, p + "in_proj_b.weight")).data(),
                                flat(linear(h, p + "in_proj_a.weight")).data(), doubles(p + "A_log").data(), doubles(p + "dt_bias").data(),
                                state.data(), out.data());
        const Rows z = linear(h, p + "in_proj_z.weight");
        Rows mixed(h.size(), std::vector<double>(static_cast<std::size_t>(nv * dv)));
        for (std::size_t i = 0; i < h.size(); ++i) {
            double* row = out.data() + static_cast<std::int64_t>(i) * nv * dv;
            for (std::int64_t head = 0; head < nv; ++head)
                norm_in_place(row + head * dv, static_cast<std::size_t>(dv), p + "norm.weight", false);
            for (std::size_t j = 0; j < mixed[i].size(); ++j) mixed[i][j] = row[j] * z[i][j] * ref::sigmoid(z[i][j]);
        }
        return linear(mixed, p + "out_proj.weight");
    }

    const ToyTarget& t_;
};

}  // namespace toy
}  // namespace dflash::testing
