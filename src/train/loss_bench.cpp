// SPDX-License-Identifier: MIT
#include "train/loss_bench.h"

#include <numeric>

#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/linear.h"
#include "kernels/stopwatch.h"
#include "tensor/arena.h"
#include "tensor/device_memory.h"
#include "tensor/working_dtype.h"
#include "train/step_bench.h"
#include "train/synthetic.h"

namespace dflash {
namespace {

// Inputs and outputs, and the planned memory in between.
class LossWork {
public:
    LossWork(const LossBenchShape& shape, Device device)
        : shape_(shape),
          context_(device),
          head_(device, working_dtype(device), {shape.vocabulary, shape.hidden}),
          hidden_(device, working_dtype(device), {shape.rows, shape.hidden}),
          gradient_(device, working_dtype(device), {shape.rows, shape.hidden}),
          rows_(device, DType::kI32, {shape.rows}),
          labels_(device, DType::kI32, {shape.rows}),
          correct_(device, DType::kI32, {shape.rows}),
          loss_(device, DType::kF32, {shape.rows}),
          label_prob_(device, DType::kF32, {shape.rows}) {
        fill_random(context_, head_, 1, 0.02);
        fill_random(context_, hidden_, 2, 1.0);
        std::vector<std::int32_t> list(static_cast<std::size_t>(shape.rows));
        std::iota(list.begin(), list.end(), 0);
        context_.upload(std::span<const std::int32_t>(list), rows_);
        for (std::int32_t& label : list) label %= static_cast<std::int32_t>(shape.vocabulary);
        context_.upload(std::span<const std::int32_t>(list), labels_);
        context_.synchronize();
        const std::size_t before = used_memory_bytes(device);
        const std::vector<LinearShape> linears = {{shape.chunk, shape.hidden, shape.vocabulary, true, true, false}};
        const auto workspace = static_cast<std::int64_t>(linear_workspace_bytes(device, linears));
        const DType dtype = working_dtype(device);
        arena_ = std::make_unique<Arena>(device,
                                         make_plan({"loss"}, {{"logits", dtype, {shape.chunk, shape.vocabulary}, Category::kLossChunk, {}},
                                                              {"gathered", dtype, {shape.chunk, shape.hidden}, Category::kLossChunk, {}},
                                                              {"workspace", DType::kU8, {workspace}, Category::kWorkspace, {}}}));
        measured_bytes_ = used_memory_bytes(device) - before;
        logits_ = arena_->tensor("logits");
        gathered_ = arena_->tensor("gathered");
        context_.bind_workspace(arena_->tensor("workspace"));
        linear_prepare(context_, linears);
    }

    void whole() const {
        for (std::int64_t begin = 0; begin < shape_.rows; begin += shape_.chunk) {
            const std::int64_t rows = std::min(shape_.chunk, shape_.rows - begin);
            gather_rows(context_, {hidden_, rows_.tensor().slice_rows(begin, rows), gathered_.slice_rows(0, rows)});
            product(rows);
            kernel(begin, rows);
            back(begin, rows);
        }
    }
    void product(std::int64_t rows) const { linear_forward(context_, {gathered_.slice_rows(0, rows), head_, logits_.slice_rows(0, rows)}); }
    void kernel(std::int64_t begin, std::int64_t rows) const {
        cross_entropy_forward_backward(context_, {.logits = logits_.slice_rows(0, rows),
                                                  .teacher_logits = {},
                                                  .labels = labels_.tensor().slice_rows(begin, rows),
                                                  .loss = loss_.tensor().slice_rows(begin, rows),
                                                  .label_prob = label_prob_.tensor().slice_rows(begin, rows),
                                                  .correct = correct_.tensor().slice_rows(begin, rows),
                                                  .want_gradient = true});
    }
    void back(std::int64_t begin, std::int64_t rows) const {
        linear_backward_input(context_, {logits_.slice_rows(0, rows), head_, gradient_.tensor().slice_rows(begin, rows)});
    }

    // Milliseconds of `repeats` calls, each on its own; on a GPU under its own load.
    template <typename Work>
    std::vector<double> times(std::int64_t repeats, const Work& work) const {
        const auto once = [&] {
            Stopwatch watch(context_);
            watch.mark();
            work();
            watch.mark();
            return watch.intervals().front();
        };
        once();
        if (context_.device().type == DeviceType::kCuda) load_for(kSettleMs, once);
        std::vector<double> ms;
        for (std::int64_t i = 0; i < repeats; ++i) ms.push_back(once());
        return ms;
    }
    std::size_t planned_bytes() const { return arena_->bytes(); }
    std::size_t measured_bytes() const { return measured_bytes_; }

private:
    LossBenchShape shape_;
    Context context_;
    DeviceBuffer head_, hidden_, gradient_, rows_, labels_, correct_, loss_, label_prob_;
    std::unique_ptr<Arena> arena_;
    std::size_t measured_bytes_ = 0;
    Tensor logits_, gathered_;
};

}  // namespace

double LossBench::share_of_ceiling() const { return flops / (median(loss_ms) / 1000) / ceiling.sustained_flops; }

LossBench run_loss_bench(const LossBenchShape& shape, Device device, std::int64_t repeats) {
    LossBench bench;
    bench.device = device;
    bench.flops = 4.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.hidden) * static_cast<double>(shape.vocabulary);
    {
        const LossWork work(shape, device);
        const std::int64_t rows = std::min(shape.chunk, shape.rows);
        bench.loss_ms = work.times(repeats, [&] { work.whole(); });
        bench.product_ms = median(work.times(repeats, [&] { work.product(rows); }));
        bench.kernel_ms = median(work.times(repeats, [&] { work.kernel(0, rows); }));
        bench.back_ms = median(work.times(repeats, [&] { work.back(0, rows); }));
        bench.planned_bytes = work.planned_bytes();
        bench.measured_bytes = work.measured_bytes();
    }
    bench.ceiling = measure_ceiling(device);
    return bench;
}

}  // namespace dflash
