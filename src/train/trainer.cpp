// SPDX-License-Identifier: MIT
#include "train/trainer.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>

#include "base/byte_size.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "comm/communicator.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "tensor/cuda_runtime.h"
#include "tensor/device_memory.h"
#include "train/attention_tuning.h"
#include "train/checkpoint.h"
#include "train/evaluation.h"
#include "train/run_inputs.h"
#include "train/run_plan.h"
#include "train/run_record.h"
#include "train/schedule.h"
#include "train/sources.h"
#include "train/step.h"

namespace dflash {
namespace {

using Clock = std::chrono::steady_clock;
double milliseconds_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

// Lines go to the run's log file too, until this goes out of scope.
struct LogFile {
    explicit LogFile(const std::string& path) { set_log_file(path); }
    ~LogFile() { set_log_file(""); }
    LogFile(const LogFile&) = delete;
    LogFile& operator=(const LogFile&) = delete;
};

// How many micro-batches and steps the run has, from the data's epochs.
struct RunLength {
    std::int64_t micro_batches = 0;  // of this rank
    std::int64_t steps = 0;
    std::int64_t of_step(std::int64_t step, std::int64_t accumulate) const {
        return std::min(accumulate, micro_batches - (step - 1) * accumulate);
    }
};
RunLength run_length(const RunSettings& settings, const FeatureSource& source) {
    RunLength length;
    if (settings.steps > 0) return {settings.steps * settings.accumulate, settings.steps};
    for (std::int64_t epoch = 0; epoch < settings.epochs; ++epoch) length.micro_batches += source.batches_in_epoch(epoch);
    length.steps = (length.micro_batches + settings.accumulate - 1) / settings.accumulate;
    return length;
}

// The next micro-batch of this rank.
struct Cursor {
    std::int64_t epoch = 0, index = 0;
    void advance(const FeatureSource& source, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) {
            if (++index < source.batches_in_epoch(epoch)) continue;
            ++epoch;
            index = 0;
        }
    }
};

// Everything the loop works on, made in this order: memory, weights, sources, state.
class Training {
public:
    Training(const RunInputs& inputs, const RunPlan& plan, const RunFolder& folder, const TrainHooks& hooks);
    TrainSummary run();

private:
    void load_models();
    void restore();
    void make_sources();
    bool due(std::int64_t every) const { return step_ == length_.steps || (every > 0 && step_ % every == 0); }
    bool is_measured(std::int64_t step) const;
    bool after_step(const StepMetrics& metrics);
    bool stop_requested() const { return hooks_.stop_requested && hooks_.stop_requested(); }
    void save();

    const RunInputs& inputs_;
    const RunSettings& settings_;
    const RunPlan& plan_;
    const RunFolder& folder_;
    const TrainHooks& hooks_;
    std::unique_ptr<Communicator> communicator_ = make_single_rank();
    Context context_;
    Arena arena_;
    HostReader reader_;
    DraftMasters masters_;
    TargetWeights target_weights_;
    DraftModel model_;
    std::unique_ptr<Optimizer> optimizer_;
    std::unique_ptr<DraftStep> draft_step_;
    std::unique_ptr<StepRunner> runner_;
    std::unique_ptr<TrainingSources> sources_;
    std::unique_ptr<Generator> generator_;
    std::unique_ptr<Evaluation> evaluation_;
    std::unique_ptr<MetricsFile> metrics_;
    DraftProvenance provenance_;
    RunLength length_;
    Schedule schedule_;
    Cursor cursor_;
    std::int64_t step_ = 0;        // done
    std::int64_t first_step_ = 0;  // done when this process began
    std::int64_t saved_step_ = -1;
    Clock::time_point start_;
};

Training::Training(const RunInputs& inputs, const RunPlan& plan, const RunFolder& folder, const TrainHooks& hooks)
    : inputs_(inputs),
      settings_(inputs.settings),
      plan_(plan),
      folder_(folder),
      hooks_(hooks),
      context_(plan.device),
      arena_(plan.device, plan.plan),
      reader_(context_.stream()) {
    context_.bind_workspace(arena_.tensor(kWorkspaceBuffer));
    context_.bind_attention(&inputs_.attention);
    load_models();
    make_sources();
    restore();
    linear_prepare(context_, plan_.linears);
}

void Training::load_models() {
    target_weights_ = bind_target_weights(inputs_.target, plan_.target_part, arena_, plan_.target_layers);
    load_target_weights(settings_.target, inputs_.target, plan_.target_part, target_weights_);
    masters_ = bind_draft_masters(inputs_.draft, arena_);
    model_ = {inputs_.draft, masters_.weights, target_weights_.embedding, target_weights_.head};
    optimizer_ = std::make_unique<Optimizer>(model_.spec, masters_, arena_);
    draft_step_ = std::make_unique<DraftStep>(model_.spec, plan_.draft_step, arena_);
    const AnchorSettings anchors = {.max_anchors = settings_.max_anchors,
                                    .seed = static_cast<std::uint64_t>(settings_.seed),
                                    .decay_gamma = settings_.decay_gamma,
                                    .uniform_weights = settings_.weighting == "dpace"};
    runner_ = std::make_unique<StepRunner>(model_, *draft_step_, *optimizer_, *communicator_, anchors, inputs_.target.end_tokens,
                                           target_weights_.head);
}

void Training::make_sources() {
    sources_ = std::make_unique<TrainingSources>(inputs_, plan_, target_weights_, arena_, *communicator_, context_);
    if (plan_.decodes) generator_ = std::make_unique<Generator>(inputs_.target, target_weights_, &model_, plan_.generator, arena_);
    evaluation_ = std::make_unique<Evaluation>(EvaluationSources{sources_->validation(), generator_.get(), &inputs_.prompts}, *runner_,
                                               inputs_.target.end_tokens, settings_.eval_new_tokens, plan_.generator.max_tokens);
    length_ = run_length(settings_, sources_->training());
    if (length_.steps == 0) throw_bad_input("the data has no micro-batch: nothing to train on");
    schedule_ = make_schedule(settings_.lr, settings_.warmup_ratio, length_.steps);
}

// First weights, or those of the last complete checkpoint.
void Training::restore() {
    std::vector<std::string> skipped;
    const std::optional<FoundCheckpoint> found = settings_.resume ? latest_checkpoint(folder_, skipped) : std::nullopt;
    for (const std::string& reason : skipped) log_warning("[checkpoint] skipped {}", reason);
    if (found) {
        check_unchanged(found->state, run_hashes(inputs_), settings_, found->path);
        load_checkpoint(*found, *optimizer_);
        step_ = found->state.step;
        cursor_ = {found->state.epoch, found->state.cursor / communicator_->ranks()};
        log_info("[checkpoint] resumed from step {} of {}; the next step's rate is {:.3e}", step_, length_.steps,
                 schedule_.learning_rate(step_ + 1));
    } else {
        optimizer_->zero_moments(context_);
        initialise_draft(masters_, static_cast<std::uint64_t>(settings_.seed));
        if (!settings_.init_from.empty()) {
            const DraftSpec spec = read_draft_spec(settings_.init_from);
            load_draft(settings_.init_from, spec, masters_);
            check_draft_copies(settings_.init_from, spec, model_.embedding, model_.head, reader_);
        }
        if (settings_.resume) log_info("[checkpoint] no complete checkpoint yet: starting at step 0");
    }
    first_step_ = step_;
    saved_step_ = step_;
    sources_->training().seek(cursor_.epoch, cursor_.index);
    provenance_ = make_provenance(inputs_);
    metrics_ = std::make_unique<MetricsFile>(folder_.metrics(), step_);
}

void Training::save() {
    if (saved_step_ == step_) return;
    const TrainState state = {.step = step_,
                              .epoch = cursor_.epoch,
                              .cursor = cursor_.index * communicator_->ranks(),
                              .seed = settings_.seed,
                              .threads = settings_.threads,
                              .hashes = run_hashes(inputs_)};
    provenance_.training["step"] = step_;
    save_checkpoint(folder_, state, {model_.spec, inputs_.target, model_.weights, *optimizer_, provenance_, reader_}, settings_.keep);
    saved_step_ = step_;
    log_info("[checkpoint] saved step {}", step_);
}

// Reading metrics waits for the device. On a GPU that is done now and then, and wherever something depends on the step having been sound.
bool Training::is_measured(std::int64_t step) const {
    if (plan_.device.type == DeviceType::kCpu || step == first_step_ + 1 || step == length_.steps || stop_requested()) return true;
    for (const std::int64_t every : {settings_.log_every, settings_.eval_every, settings_.save_every}) {
        if (every > 0 && step % every == 0) return true;
    }
    return false;
}

// After a measured step: reports, evaluates and saves where due; true = go on.
bool Training::after_step(const StepMetrics& metrics) {
    metrics_->append(to_json_line(metrics));
    if (hooks_.on_step) hooks_.on_step(metrics);
    const bool stop = stop_requested();
    if (!stop && due(settings_.eval_every) && evaluation_->has_anything()) {
        const Evaluation::Result result = evaluation_->run(context_, step_, hooks_.stop_requested);
        if (result.finished) {
            metrics_->append(to_json_line(result.metrics));
            if (hooks_.on_eval) hooks_.on_eval(result.metrics);
        }
    }
    const bool stop_now = stop || stop_requested();
    if (stop_now || due(settings_.save_every)) save();
    return !stop_now && step_ < length_.steps;
}

TrainSummary Training::run() {
    start_ = Clock::now();
    Clock::time_point begin = start_;  // of the steps since the last measured one
    std::int64_t steps = 0, tokens = 0;
    bool go_on = step_ < length_.steps;
    while (go_on) {
        const std::int64_t step = step_ + 1;
        const std::int64_t micro_batches = length_.of_step(step, settings_.accumulate);
        const bool measure = is_measured(step);
        StepMetrics metrics = runner_->run(context_, sources_->training(),
                                           {.step = step,
                                            .micro_batches = micro_batches,
                                            .lr = schedule_.learning_rate(step),
                                            .max_grad_norm = settings_.max_grad_norm,
                                            .measure = measure});
        step_ = step;
        cursor_.advance(sources_->training(), micro_batches);
        ++steps;
        tokens += metrics.tokens;
        if (!measure) continue;
        const double milliseconds = milliseconds_since(begin);
        metrics.total_steps = length_.steps;
        metrics.step_ms = milliseconds / static_cast<double>(steps);
        metrics.tokens_per_second = 1000.0 * static_cast<double>(tokens) / milliseconds;
        const double mean_ms = milliseconds_since(start_) / static_cast<double>(step_ - first_step_);
        metrics.seconds_left = mean_ms * static_cast<double>(length_.steps - step_) / 1000.0;
        go_on = after_step(metrics);
        begin = Clock::now();
        steps = tokens = 0;
    }
    return {.step = step_,
            .total_steps = length_.steps,
            .stopped = step_ < length_.steps,
            .planned_bytes = arena_.bytes(),
            .resident_peak_bytes = resident_peak_bytes(),
            .draft_folder = folder_.draft()};
}

// The settings to run with: the user's, or on --resume the recorded ones with the user's free ones over them.
RunSettings effective_settings(const RunSettings& asked) {
    check_settings(asked);
    if (asked.out.empty()) throw_bad_input("--out is missing: the run folder");
    const std::string config = asked.out + "/config.json";
    const bool there = std::filesystem::exists(config);
    if (asked.resume && !there) throw_bad_input("--resume: {} holds no run", asked.out);
    if (!asked.resume && there)
        throw_bad_input("--out {} holds a run already: continue it with --resume, or choose another folder", asked.out);
    RunSettings settings = asked.resume ? resume_settings(read_recorded_settings(config), asked) : asked;
    // A drafter that the run started from, or was made after, is no longer needed once the run has saved its own.
    const bool made_after_a_file = !settings.init_from.empty() || !settings.draft_config.empty();
    const std::string saved_draft = asked.out + "/draft";
    if (asked.resume && made_after_a_file && std::filesystem::exists(saved_draft)) settings.resumed_draft = saved_draft;
    check_settings(settings);
    check_run_paths(settings);
    return settings;
}

// What the device holds beside the arena, once libraries and contexts are there.
void log_memory(const RunPlan& plan) {
    if (plan.device.type == DeviceType::kCpu) return;
    const cuda::DeviceProperties properties = cuda::device_properties(plan.device);
    const std::size_t taken = used_memory_bytes(plan.device);
    log_info("[memory] {}: arena {} as planned; driver context, libraries and other programs {} (measured); {} of {} free", properties.name,
             format_bytes(plan.plan.arena_bytes), format_bytes(taken - std::min(taken, plan.plan.arena_bytes)),
             format_bytes(properties.memory_bytes - taken), format_bytes(properties.memory_bytes));
}

// Of this rank, which is the first: the record's on --resume, else what `dflash tune` found on this device.
void choose_attention(RunInputs& inputs, Device device) {
    const RunSettings& settings = inputs.settings;
    const auto keys = attention_keys(inputs.draft, settings.token_budget, settings.max_anchors);
    const Json recorded = settings.resume ? read_recorded_attention(settings.out + "/config.json") : Json();
    inputs.attention = choices_for_run(device, keys, settings.resume ? &recorded : nullptr);
}

void log_start(const RunInputs& inputs, const RunPlan& plan, const std::string& attention) {
    for (const std::string& line : describe_settings(inputs.settings)) log_info("[config] {}", line);
    log_info("[draft] {}", describe_draft(inputs.draft));
    log_info("[attention] {}", attention);
    if (const std::string tuned = describe_choices(inputs.attention, plan.device); !tuned.empty()) log_info("[attention] tuned: {}", tuned);
    log_info("[plan] {} ({} bytes) on {}, largest in phase '{}'", format_bytes(plan.plan.arena_bytes), plan.plan.arena_bytes,
             plan.device.type == DeviceType::kCuda ? "the GPU" : "the CPU",
             plan.plan.phases[static_cast<std::size_t>(peak_phase(plan.plan))]);
}

}  // namespace

TrainSummary run_training(const RunSettings& asked, const TrainHooks& hooks) {
    const RunSettings settings = effective_settings(asked);
    if (settings.threads > 0) omp_set_num_threads(static_cast<int>(settings.threads));
    RunInputs inputs = read_run_configs(settings);
    const RunPlan plan = make_run_plan(inputs.target, inputs.draft, inputs.settings);
    const std::size_t memory = settings.memory.empty() ? available_memory_bytes(plan.device) : parse_bytes(settings.memory, "--memory");
    if (memory > 0) check_memory(inputs.target, inputs.draft, inputs.settings, plan, memory);

    const std::string attention = describe_attention(inputs.draft, plan.device);
    choose_attention(inputs, plan.device);
    open_run_data(inputs);
    const RunFolder folder(settings.out);
    const LogFile log(folder.log());
    log_start(inputs, plan, attention);
    if (settings.resume) {
        check_recorded_hashes(folder.config(), run_hashes(inputs));
    } else {
        write_run_record(folder.config(), inputs);
    }
    Training training(inputs, plan, folder, hooks);
    log_memory(plan);
    return training.run();
}

}  // namespace dflash
