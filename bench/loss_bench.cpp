// SPDX-License-Identifier: MIT
// The loss alone on a GPU, at the size of a 248,320-word target: 8,192 weighted rows, hidden 5,120, forward and gradient, chunk by chunk:
// gather, product with the head, row kernel, product back. Timed after three seconds of its own load (a card under load is power-capped).
// Prints one line a chunk size: median, minimum and maximum of the runs, and the share of the rate that the first product alone sustains.
#include <fmt/core.h>

#include "gpu_timing.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/linear.h"
#include "tensor/buffer.h"

namespace dflash {
namespace {

constexpr std::int64_t kRows = 8192, kHidden = 5120, kVocabulary = 248320;
constexpr int kRuns = 9;
constexpr double kLoadMs = 3000;

void run() {
    const Device device{DeviceType::kCuda, 0};
    Context context(device);
    const auto timed = [&](const std::function<void()>& work) { return timed_ms(context, work, kRuns, kLoadMs); };
    const DeviceBuffer head(device, DType::kBF16, {kVocabulary, kHidden}), hidden(device, DType::kBF16, {kRows, kHidden}),
        gradient(device, DType::kBF16, {kRows, kHidden}), labels(device, DType::kI32, {kRows}), rows(device, DType::kI32, {kRows}),
        loss(device, DType::kF32, {kRows}), label_prob(device, DType::kF32, {kRows}), correct(device, DType::kI32, {kRows});
    fill_bf16(context, head.tensor(), 0.02F);
    fill_bf16(context, hidden.tensor(), 1.0F);
    std::vector<std::int32_t> list(kRows);
    for (std::size_t i = 0; i < list.size(); ++i) list[i] = static_cast<std::int32_t>(i);
    context.upload(list.data(), rows.tensor());
    context.upload(list.data(), labels.tensor());
    for (const std::int64_t chunk : {1024, 2048}) {
        const DeviceBuffer logits(device, DType::kBF16, {chunk, kVocabulary}), gathered(device, DType::kBF16, {chunk, kHidden});
        const std::vector<LinearShape> shapes = {{chunk, kHidden, kVocabulary, true, true, false}};
        const DeviceBuffer workspace(device, DType::kU8, {static_cast<std::int64_t>(linear_workspace_bytes(device, shapes))});
        context.bind_workspace(workspace.tensor());
        linear_prepare(context, shapes);
        const auto product = [&] { linear_forward(context, {gathered.tensor(), head.tensor(), logits.tensor()}); };
        const auto back = [&] { linear_backward_input(context, {logits.tensor(), head.tensor(), gradient.tensor().slice_rows(0, chunk)}); };
        const auto rows_of = [&](std::int64_t begin) {
            cross_entropy_forward_backward(context, {logits.tensor(),
                                                     {},
                                                     labels.tensor().slice_rows(begin, chunk),
                                                     loss.tensor().slice_rows(begin, chunk),
                                                     label_prob.tensor().slice_rows(begin, chunk),
                                                     correct.tensor().slice_rows(begin, chunk),
                                                     true});
        };
        const std::vector<double> whole = timed([&] {
            for (std::int64_t begin = 0; begin < kRows; begin += chunk) {
                gather_rows(context, {hidden.tensor(), rows.tensor().slice_rows(begin, chunk), gathered.tensor()});
                product();
                rows_of(begin);
                linear_backward_input(context, {logits.tensor(), head.tensor(), gradient.tensor().slice_rows(begin, chunk)});
            }
        });
        const std::vector<double> first = timed(product), second = timed(back), row = timed([&] { rows_of(0); });
        const double flops = 2.0 * static_cast<double>(chunk * kHidden) * kVocabulary;
        fmt::print(
            "chunk {}: loss {:.2f} ms (min {:.2f}, max {:.2f}), {:.1f} TFLOP/s; product {:.0f} TFLOP/s, back {:.0f} TFLOP/s, row kernel "
            "{:.2f} ms "
            "({:.2f} TB/s); beyond inputs and outputs {:.2f} GB\n",
            chunk, whole[kRuns / 2], whole.front(), whole.back(), 2.0 * flops * (kRows / chunk) / whole[kRuns / 2] / 1e9,
            flops / first[kRuns / 2] / 1e9, flops / second[kRuns / 2] / 1e9, row[kRuns / 2],
            6.0 * static_cast<double>(chunk) * kVocabulary / row[kRuns / 2] / 1e9,
            static_cast<double>(logits.tensor().bytes() + gathered.tensor().bytes() + workspace.tensor().bytes()) / 1e9);
        context.synchronize();
        context.bind_workspace({});
    }
}

}  // namespace
}  // namespace dflash

int main() {
    if (dflash::cuda::device_count() == 0) {
        fmt::print("loss_bench: no GPU here\n");
        return 2;
    }
    dflash::run();
}
