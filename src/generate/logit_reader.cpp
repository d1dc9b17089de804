// SPDX-License-Identifier: MIT
#include "generate/logit_reader.h"

#include "generate/sampler.h"
#include "kernels/elementwise.h"

namespace dflash {
namespace {

constexpr const char* kBest = "generate.best";

bool on_host(Device device) { return device.type == DeviceType::kCpu; }

}  // namespace

std::int32_t LogitRows::best_token(std::int64_t index, const char* what) const {
    if (values.defined()) return argmax(row(index), what);
    const std::int32_t token = best[static_cast<std::size_t>(index)];
    if (token < 0) throw_nan_logits(what);
    return token;
}

std::vector<BufferSpec> LogitReader::buffers(Device device, std::int64_t max_rows, Lifetime lifetime) {
    if (on_host(device)) return {};
    return {{kBest, DType::kI32, {max_rows}, Category::kTarget, lifetime}};
}

LogitReader::LogitReader(Device device, const Arena& arena) {
    if (on_host(device)) return;
    best_ = arena.tensor(kBest);
    host_best_.reserve(static_cast<std::size_t>(best_.elements()));
}

LogitRows LogitReader::read(const Context& context, const Tensor& logits, bool greedy) {
    if (on_host(logits.device)) return logits;
    if (greedy) {
        const Tensor best = best_.slice_rows(0, logits.rows());
        argmax_rows(context, logits, best);
        host_best_.resize(static_cast<std::size_t>(logits.rows()));
        context.download(best, host_best_.data());
        return LogitRows(host_best_);
    }
    host_values_.resize(static_cast<std::size_t>(logits.elements()));
    context.download(logits, host_values_.data());
    return Tensor{host_values_.data(), DType::kF32, logits.shape, Device{}};
}

}  // namespace dflash
