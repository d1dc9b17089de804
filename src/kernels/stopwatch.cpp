// SPDX-License-Identifier: MIT
#include "kernels/stopwatch.h"

#include <string_view>

#include "tensor/cuda_runtime.h"

namespace dflash {
namespace {

bool on_cuda(const Context& context) { return context.device().type == DeviceType::kCuda; }

}  // namespace

Stopwatch::~Stopwatch() {
    for (void* event : events_) cuda::destroy_event(event);
}

void Stopwatch::mark() {
    if (on_cuda(context_)) {
        if (count_ == events_.size()) events_.push_back(cuda::create_event(context_.device()));
        cuda::record(context_.stream(), events_[count_]);
    } else {
        times_.resize(count_);
        times_.push_back(std::chrono::steady_clock::now());
    }
    ++count_;
}

std::vector<double> Stopwatch::intervals() const {
    std::vector<double> ms;
    if (count_ > 0 && on_cuda(context_)) cuda::wait(events_[count_ - 1]);
    for (std::size_t i = 1; i < count_; ++i) {
        ms.push_back(on_cuda(context_) ? cuda::milliseconds_between(events_[i - 1], events_[i])
                                       : std::chrono::duration<double, std::milli>(times_[i] - times_[i - 1]).count());
    }
    return ms;
}

ProbedOp::ProbedOp(const Context& context, const char* op) : probe_(context.probe()) {
    if (probe_ != nullptr && std::string_view(probe_->op()) != op) probe_ = nullptr;
    if (probe_ != nullptr) probe_->watch().mark();
}

ProbedOp::~ProbedOp() {
    if (probe_ != nullptr) probe_->watch().mark();
}

}  // namespace dflash
