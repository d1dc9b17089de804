// SPDX-License-Identifier: MIT
// Everything `dflash train` can be told, in one table: the same list makes the flags, the resolved config of the run folder, the lines
// printed at the start, and the check of --resume. Keys are the flags' names without the dashes.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

namespace dflash {

struct RunSettings {
    std::string target, data, features, val_data, out;
    std::string eval_prompts;
    std::int64_t epochs = 6, steps = 0;
    std::int64_t token_budget = 8192, max_length = 0, max_anchors = 512;
    std::int64_t block_size = 16, draft_layers = 5;
    std::string draft_config;
    std::vector<std::int64_t> target_layer_ids;
    std::int64_t sliding_window = -1, mask_token_id = -1;
    std::string init_from;
    std::string loss = "ce", weighting = "dpace";
    double decay_gamma = 0, dpace_alpha = 0.5;
    std::int64_t loss_chunk = 1024;
    std::string optimizer = "adamw";
    double lr = 6e-4, warmup_ratio = 0.04, max_grad_norm = 1;
    std::int64_t accumulate = 1;
    std::string recompute = "none", grad_dtype = "auto";
    std::int64_t eval_every = 500, eval_count = 8, eval_new_tokens = 96;
    std::int64_t save_every = 500, keep = 2, log_every = 10;
    std::int64_t seed = 0;
    std::int64_t dp_pairs = 1;
    std::string placement = "shared", device = "auto";
    std::int64_t threads = 0;
    std::string chat_template = "auto", thinking = "off", system;
    std::string memory;
    bool resume = false;

    std::string
        resumed_draft;  // on --resume, a drafter that the run has saved: its config stands for that of --init-from or --draft-config
    std::set<std::string> given;  // keys that the user wrote, as against defaults; not part of the config
    bool is_given(const std::string& key) const { return given.count(key) != 0; }
};

// What a key may do on --resume: the curve's keys must stay as they were; the others may change.
enum class SettingScope { kCurve, kFree };

// Calls visit(key, scope, field, help) for every setting, in the order of --help.
template <typename Settings, typename Visitor>
void visit_settings(Settings& s, Visitor&& visit) {
    constexpr auto kCurve = SettingScope::kCurve;
    constexpr auto kFree = SettingScope::kFree;
    visit("target", kFree, s.target, "folder of the frozen target: config.json, weights, tokenizer.json");
    visit("data", kFree, s.data, "prepared data set (a folder that `dflash prepare` wrote), or a chat JSONL");
    visit("features", kFree, s.features, "train from stored features instead of --data: a folder that `dflash features` wrote");
    visit("val-data", kFree, s.val_data, "held-out data, of the same kind as the training data: validation loss and real decoding");
    visit("out", kFree, s.out, "run folder to make: config, metrics.jsonl, log, draft/, checkpoints/");
    visit("epochs", kCurve, s.epochs, "passes over the data; --steps wins");
    visit("steps", kCurve, s.steps, "optimizer steps; 0 = as --epochs says");
    visit("token-budget", kCurve, s.token_budget, "most tokens of a micro-batch");
    visit("max-length", kCurve, s.max_length, "most tokens of a document when --data is a JSONL; 0 = the token budget");
    visit("max-anchors", kCurve, s.max_anchors, "most anchors of a micro-batch");
    visit("block-size", kCurve, s.block_size, "tokens of a block, anchor included: 2 to 64");
    visit("draft-layers", kCurve, s.draft_layers, "layers of the drafter");
    visit("draft-config", kCurve, s.draft_config, "config.json of the drafter to make; wins over the geometry's defaults");
    visit("target-layer-ids", kCurve, s.target_layer_ids, "target layers whose output feeds the drafter, from 0; default: evenly spaced");
    visit("sliding-window", kCurve, s.sliding_window,
          "window of all but the last draft layer in tokens; 0 = full attention, -1 = by the target");
    visit("mask-token-id", kCurve, s.mask_token_id, "token of the empty slots; -1 = from the tokenizer or the target's family");
    visit("init-from", kCurve, s.init_from, "start from this drafter instead of random weights");
    visit("loss", kCurve, s.loss, "ce: the data's tokens; kl: the target's distribution");
    visit("weighting", kCurve, s.weighting, "of the slots: dpace or decay");
    visit("decay-gamma", kCurve, s.decay_gamma, "of --weighting decay; 0 = by the block size");
    visit("dpace-alpha", kCurve, s.dpace_alpha, "of --weighting dpace");
    visit("loss-chunk", kCurve, s.loss_chunk, "rows of logits at a time");
    visit("optimizer", kCurve, s.optimizer, "adamw; or muon for the matrices: fewer steps, but each costs more in a wide drafter");
    visit("lr", kCurve, s.lr, "peak learning rate");
    visit("warmup-ratio", kCurve, s.warmup_ratio, "share of the steps over which the rate rises; then a cosine to 0");
    visit("max-grad-norm", kCurve, s.max_grad_norm, "gradients of a larger norm are scaled down to it; 0 = never");
    visit("accumulate", kCurve, s.accumulate, "micro-batches of a step");
    visit("recompute", kCurve, s.recompute,
          "made again in backward, for less memory: none, attention (what attention keeps), or layer (all of a layer's activations)");
    visit("grad-dtype", kCurve, s.grad_dtype,
          "of gradients: f32, or bf16 on a GPU (half the memory); auto: bf16 where a step is one micro-batch");
    visit("eval-every", kFree, s.eval_every, "steps between evaluations; 0 = at the end only");
    visit("eval-prompts", kFree, s.eval_prompts, "chat JSONL whose prompts are decoded; default: the prompts of --val-data");
    visit("eval-count", kFree, s.eval_count, "prompts to decode in an evaluation");
    visit("eval-new-tokens", kFree, s.eval_new_tokens, "tokens to decode for each prompt");
    visit("save-every", kFree, s.save_every, "steps between checkpoints; 0 = at the end only");
    visit("keep", kFree, s.keep, "checkpoints to keep");
    visit("log-every", kFree, s.log_every,
          "steps between metrics on a GPU, which has to be waited for to read them, and between progress lines without a terminal");
    visit("seed", kCurve, s.seed, "of data order, anchors and first weights");
    visit("dp-pairs", kFree, s.dp_pairs, "pairs of target and drafter device: 1");
    visit("placement", kFree, s.placement, "of a pair: shared");
    visit("device", kCurve, s.device, "auto, cpu or cuda");
    visit("threads", kCurve, s.threads, "of the CPU; 0 = all");
    visit("template", kFree, s.chat_template, "chat template when --data is a JSONL: auto, chatml, qwen3, qwen3.5, llama3");
    visit("thinking", kFree, s.thinking, "thinking mode when --data is a JSONL: on or off");
    visit("system", kFree, s.system, "system text when --data is a JSONL and a row has none");
    visit("memory", kFree, s.memory, "most memory to plan for, e.g. 96GiB; default: what is available");
    visit("resume", kFree, s.resume, "continue the run in --out from its last complete checkpoint");
}

nlohmann::json settings_to_json(const RunSettings& settings);
// Keys that are absent keep their defaults; unknown keys and wrong types are Error(kBadInput).
RunSettings settings_from_json(const nlohmann::json& object, const std::string& where);

// Values and their combinations, before any file is read. Error(kBadInput), one line, naming the flag. What this build has no code for
// (CUDA, several pairs, recomputation) is refused by name.
void check_settings(const RunSettings& settings);

// --resume: the recorded settings with the user's free ones over them. A given key of the curve that differs from the record is
// Error(kBadInput) naming key and both values.
RunSettings resume_settings(const RunSettings& recorded, const RunSettings& asked);

// "--token-budget 8192" lines, defaults marked.
std::vector<std::string> describe_settings(const RunSettings& settings);

}  // namespace dflash
