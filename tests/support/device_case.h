// SPDX-License-Identifier: MIT
// One test body for every device. A fixture derives from DeviceTest (or DeviceCases<Case>), and its cases run on the CPU and, in builds with
// CUDA, on the GPU; where there is none those are skipped and counted. The body fills host buffers in f32, computes its reference from them, and
//   in(x)          gives the op its tensor: on CUDA the host values are first rounded to bf16 in place, so call it before the reference reads them
//   out(y)         a result, poisoned with NaN
//   in_out(y)      a result that the op adds to
//   finish()       brings all results since then back into their host buffers, widened to f32; may be called again after further ops
//   forget()       no result so far is brought back again: where their host buffers end before the test does, as in a loop
//   tolerance(t)   t, or what it is for bf16
// kAsIs as a second argument keeps f32 (row statistics, moments, f32 results); other dtypes are always kept. On the CPU all of this is the host
// buffer itself. A host buffer is given once in each role; what an earlier op wrote is passed on as the tensor that out() gave.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/bf16.h"
#include "kernels/context.h"
#include "support/close.h"
#include "tensor/buffer.h"
#include "tensor/cuda_runtime.h"
#include "tensor/working_dtype.h"

namespace dflash::testing {

enum class Stored { kWorking, kAsIs };
using enum Stored;

// Devices that this build has code for.
inline std::vector<DeviceType> device_types() {
    if (cuda::is_built()) return {DeviceType::kCpu, DeviceType::kCuda};
    return {DeviceType::kCpu};
}
inline const char* device_type_name(DeviceType type) { return type == DeviceType::kCuda ? "cuda" : "cpu"; }

class DeviceMemory {
public:
    explicit DeviceMemory(Device device) : device_(device) {}

    const Context& context() const { return context_; }

    Tensor in(const Tensor& host, Stored stored = kWorking) { return on_cpu() ? host : upload(place(host, stored)); }
    Tensor in_out(const Tensor& host, Stored stored = kWorking) {
        if (on_cpu()) return host;
        results_.push_back(place(host, stored));
        return upload(results_.back());
    }
    Tensor out(const Tensor& host, Stored stored = kWorking) {
        if (host.bytes() > 0) std::memset(host.data, 0xff, host.bytes());  // NaN, and -1
        return in_out(host, stored);
    }
    void finish() const {
        context_.synchronize();
        for (const Placed& result : results_) download(result);
    }

    void forget() { results_.clear(); }

    Tolerance tolerance(Tolerance cpu, Stored stored = kWorking) const {
        if (on_cpu()) return cpu;
        return stored == kAsIs ? kWideF32 : cpu.bf16();
    }

private:
    struct Placed {
        Tensor host, device;
    };
    bool on_cpu() const { return device_.type == DeviceType::kCpu; }
    static bool narrowed(const Placed& p) { return p.host.dtype != p.device.dtype; }

    Placed place(const Tensor& host, Stored stored) {
        const bool working = stored == kWorking && host.dtype == DType::kF32;
        owned_.emplace_back(device_, working ? working_dtype(device_) : host.dtype, host.shape);
        return {host, owned_.back().tensor()};
    }
    Tensor upload(const Placed& p) {
        if (!narrowed(p)) {
            context_.upload(p.host.data, p.device);
            return p.device;
        }
        std::vector<std::uint16_t> bits(static_cast<std::size_t>(p.host.elements()));
        for (std::size_t i = 0; i < bits.size(); ++i) {
            float& value = p.host.f32()[i];
            bits[i] = float_to_bf16(value);
            value = bf16_to_float(bits[i]);
        }
        context_.upload(bits.data(), p.device);
        return p.device;
    }
    void download(const Placed& p) const {
        if (!narrowed(p)) return context_.download(p.device, p.host.data);
        std::vector<std::uint16_t> bits(static_cast<std::size_t>(p.host.elements()));
        context_.download(p.device, bits.data());
        for (std::size_t i = 0; i < bits.size(); ++i) p.host.f32()[i] = bf16_to_float(bits[i]);
    }

    Device device_;
    std::vector<DeviceBuffer> owned_;  // outlives what the context's stream still does
    std::vector<Placed> results_;
    Context context_{device_};
};

// The services above as members of a fixture.
template <typename Param>
class DeviceFixture : public ::testing::TestWithParam<Param> {
protected:
    explicit DeviceFixture(DeviceType type) : device_{type, 0} {
        if (type == DeviceType::kCpu || cuda::device_count() > 0) memory_.emplace(device_);
    }
    void SetUp() override {
        if (!memory_) GTEST_SKIP() << "no GPU here";
    }
    Device device() const { return device_; }
    const Context& context() const { return memory_->context(); }
    Tensor in(const Tensor& host, Stored stored = kWorking) { return memory_->in(host, stored); }
    Tensor out(const Tensor& host, Stored stored = kWorking) { return memory_->out(host, stored); }
    Tensor in_out(const Tensor& host, Stored stored = kWorking) { return memory_->in_out(host, stored); }
    void finish() const { memory_->finish(); }
    void forget() { memory_->forget(); }
    Tolerance tolerance(Tolerance cpu, Stored stored = kWorking) const { return memory_->tolerance(cpu, stored); }

private:
    Device device_;
    std::optional<DeviceMemory> memory_;
};

// For tests without cases: DFLASH_ON_EACH_DEVICE(Fixture).
class DeviceTest : public DeviceFixture<DeviceType> {
protected:
    DeviceTest() : DeviceFixture(GetParam()) {}
};

// For tests with cases: c_ is the case. DFLASH_CASES_ON_EACH_DEVICE(Suite, Fixture, ::testing::Values(Case{...}, ...)). A case with a
// `const char* name` or a `std::string name` is called by it.
template <typename Case>
class DeviceCases : public DeviceFixture<std::tuple<DeviceType, Case>> {
protected:
    DeviceCases() : DeviceFixture<std::tuple<DeviceType, Case>>(std::get<0>(this->GetParam())), c_(std::get<1>(this->GetParam())) {}
    Case c_;
};

struct DeviceCaseName {
    std::string operator()(const ::testing::TestParamInfo<DeviceType>& info) const { return device_type_name(info.param); }
    template <typename Case>
    std::string operator()(const ::testing::TestParamInfo<std::tuple<DeviceType, Case>>& info) const {
        std::string name = device_type_name(std::get<0>(info.param));
        if constexpr (requires(Case c) { std::string(c.name); }) {
            return name + "_" + std::string(std::get<1>(info.param).name);
        } else {
            return name + "_" + std::to_string(info.index);
        }
    }
};

}  // namespace dflash::testing

#define DFLASH_ON_EACH_DEVICE(fixture) \
    INSTANTIATE_TEST_SUITE_P(, fixture, ::testing::ValuesIn(::dflash::testing::device_types()), ::dflash::testing::DeviceCaseName())
#define DFLASH_CASES_ON_EACH_DEVICE(suite, fixture, ...)                                                                              \
    INSTANTIATE_TEST_SUITE_P(suite, fixture, ::testing::Combine(::testing::ValuesIn(::dflash::testing::device_types()), __VA_ARGS__), \
                             ::dflash::testing::DeviceCaseName())
