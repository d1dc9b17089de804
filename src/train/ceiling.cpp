// SPDX-License-Identifier: MIT
#include "train/ceiling.h"

#include <algorithm>

#include "kernels/linear.h"
#include "kernels/stopwatch.h"
#include "tensor/working_dtype.h"
#include "train/synthetic.h"

namespace dflash {
namespace {

constexpr std::int64_t kCpuSize = 2048;
constexpr std::int64_t kGpuSize = 8192;
constexpr int kCpuRepeats = 5;
constexpr int kGpuWarmups = 5;
constexpr int kGpuRepeats = 20;

struct Square {
    explicit Square(const Context& context, std::int64_t side)
        : size(side),
          a(context.device(), working_dtype(context.device()), {side, side}),
          b(context.device(), working_dtype(context.device()), {side, side}),
          c(context.device(), working_dtype(context.device()), {side, side}) {
        fill_random(context, a, 1, 1.0);
        fill_random(context, b, 2, 1.0);
    }
    double flops() const { return 2 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size); }
    std::int64_t size;
    DeviceBuffer a, b, c;
};

// Milliseconds of `count` products one after another.
template <typename Product>
double timed_ms(const Context& context, int count, const Product& product) {
    Stopwatch watch(context);
    watch.mark();
    for (int i = 0; i < count; ++i) product();
    watch.mark();
    return watch.intervals().front();
}

// The best of the three products of a linear layer.
Ceiling measure_cpu() {
    const Context context;
    const Square s(context, kCpuSize);
    double best_ms = 1e300;
    for (int i = 0; i < kCpuRepeats; ++i) {
        best_ms = std::min(best_ms, timed_ms(context, 1, [&] { linear_forward(context, {.x = s.a, .weight = s.b, .y = s.c}); }));
        best_ms = std::min(best_ms, timed_ms(context, 1, [&] { linear_backward_input(context, {.d_y = s.a, .weight = s.b, .d_x = s.c}); }));
        best_ms = std::min(best_ms, timed_ms(context, 1, [&] {
                               linear_backward_weight(context, {.d_y = s.a, .x = s.b, .d_weight = s.c, .write = Write::kOverwrite});
                           }));
    }
    const double rate = s.flops() / (best_ms / 1000);
    return {rate, rate};
}

Ceiling measure_cuda(Device device) {
    const Context context(device);
    const Square s(context, kGpuSize);
    const auto product = [&] { linear_forward(context, {.x = s.a, .weight = s.b, .y = s.c}); };
    const auto rate = [&] { return s.flops() * kGpuRepeats / (timed_ms(context, kGpuRepeats, product) / 1000); };
    timed_ms(context, kGpuWarmups, product);
    Ceiling ceiling;
    ceiling.cold_flops = rate();
    load_for(kSettleMs, [&] { return timed_ms(context, kGpuRepeats, product); });
    ceiling.sustained_flops = rate();
    return ceiling;
}

}  // namespace

Ceiling measure_ceiling(Device device) { return device.type == DeviceType::kCuda ? measure_cuda(device) : measure_cpu(); }

}  // namespace dflash
