// SPDX-License-Identifier: MIT
// `dflash doctor`: this machine, the libraries, the kernel each op will run, and the state of caches.
#include <fmt/core.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "base/byte_size.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "cli/bench_shape.h"
#include "cli/command.h"
#include "io/tile_cache.h"
#include "kernels/backends.h"
#include "kernels/cpu/vector_isa.h"
#include "tensor/cuda_runtime.h"
#include "tensor/device_choice.h"
#include "tensor/device_memory.h"
#include "train/attention_tuning.h"

namespace dflash::cli {
namespace {

std::string cpu_model() {
    std::ifstream info("/proc/cpuinfo");
    std::string line;
    while (std::getline(info, line)) {
        const auto colon = line.find(": ");
        if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
    }
    return "unknown";
}

const char* onednn_isa() {
    switch (dnnl::get_effective_cpu_isa()) {
        case dnnl::cpu_isa::sse41: return "SSE4.1";
        case dnnl::cpu_isa::avx: return "AVX";
        case dnnl::cpu_isa::avx2:
        case dnnl::cpu_isa::avx2_vnni: return "AVX2";
        case dnnl::cpu_isa::avx512_core:
        case dnnl::cpu_isa::avx512_core_vnni:
        case dnnl::cpu_isa::avx512_core_bf16: return "AVX-512";
        case dnnl::cpu_isa::avx512_core_amx: return "AVX-512 with AMX";
        default: return "the library's best";
    }
}

// Without a GPU: which of build, driver and device is missing.
std::string cuda_state() {
    if (!cuda::is_built()) {
        const bool driver = std::filesystem::exists("/proc/driver/nvidia/version");
        return std::string("not built into this binary; ") + (driver ? "an NVIDIA driver is present" : "no NVIDIA driver found");
    }
    const int devices = cuda::device_count();
    return devices == 0 ? "built in; no GPU found, or no driver for it"
                        : fmt::format("built in; {} GPU{}", devices, devices == 1 ? "" : "s");
}

// Asking for a device's memory makes the driver's context on it, which takes memory of its own.
void print_gpus() {
    for (int index = 0; index < cuda::device_count(); ++index) {
        const Device device{DeviceType::kCuda, index};
        const cuda::DeviceProperties properties = cuda::device_properties(device);
        const std::size_t used = used_memory_bytes(device);
        fmt::print("GPU {}            {}, compute capability {}.{}, {} multiprocessors\n", index, properties.name, properties.compute_major,
                   properties.compute_minor, properties.multiprocessors);
        fmt::print("                 {} of {} free; {} taken by the driver's context and other programs\n",
                   format_bytes(properties.memory_bytes - used), format_bytes(properties.memory_bytes), format_bytes(used));
    }
}

void print_kernel(const std::string& op, const std::string& product, const std::string& vector) {
    if (op.find("workspace") != std::string::npos || op.rfind("make_", 0) == 0) return;  // sizes and handles, no kernels
    fmt::print("{:<34}{}\n", op, op.rfind("linear_", 0) == 0 ? product : vector);
}

void print_machine() {
    const dnnl_version_t& version = *dnnl_version();
    fmt::print("processor        {}\n", cpu_model());
    fmt::print("threads          {} (OpenMP; --threads or OMP_NUM_THREADS changes it; results are bit-equal for one count)\n",
               omp_get_max_threads());
    fmt::print("memory           {} available\n", format_bytes(host_memory_available_bytes()));
    fmt::print("matrix products  oneDNN {}.{}.{}, {}, fp32\n", version.major, version.minor, version.patch, onednn_isa());
    fmt::print("CUDA             {}\n", cuda_state());
    print_gpus();
}

// Every op of the table that the dispatcher is built from, with what it will run.
void print_kernels() {
    const dnnl_version_t& version = *dnnl_version();
    const std::string product = fmt::format("oneDNN {}.{}.{} f32 product", version.major, version.minor, version.patch);
    const std::string vector = fmt::format("vector code {}, f32", cpu::vector_isa());
    fmt::print("\n{:<34}{}\n", "op", "kernel on the CPU");
#define DFLASH_PRINT_LAUNCHER(result, name, arguments) print_kernel(#name, product, vector);
    DFLASH_LAUNCHERS(DFLASH_PRINT_LAUNCHER)
#undef DFLASH_PRINT_LAUNCHER
    for (const char* name : {"linear_forward", "linear_backward_input", "linear_backward_weight"}) print_kernel(name, product, vector);
}

using NamedSpecs = std::vector<std::pair<std::string, DraftSpec>>;
NamedSpecs specs_of(const std::string& draft) {
    NamedSpecs specs;
    if (!draft.empty()) {
        specs.emplace_back(draft, read_draft_spec(draft));
    } else {
        for (const auto& [name, shape] : named_bench_shapes()) specs.emplace_back("shape " + name, draft_spec_of(shape));
    }
    return specs;
}

// Each kind of draft layer with its anchor-attention kernel on the device that training would take; a shape without one says so.
void print_attention(const NamedSpecs& specs) {
    const Device device = choose_device("auto");
    fmt::print("\nanchor attention on the {}\n", device.type == DeviceType::kCuda ? "GPU" : "CPU");
    for (const auto& [name, spec] : specs) {
        fmt::print("{}: {}/{} heads of {}, blocks of {}\n", name, spec.heads, spec.kv_heads, spec.head_dim, spec.block_size);
        try {
            fmt::print("    {}\n", describe_attention(spec, device));
        } catch (const Error& error) {
            fmt::print("    refused: {}\n", error.what());
        }
    }
}

void print_cache() {
    const TileCache cache(cache_folder());
    const TileCache::State state = cache.state();
    fmt::print("\ntile cache       ");
    if (cache.folder().empty()) {
        fmt::print("none: $DFLASH_CACHE_DIR, $XDG_CACHE_HOME and $HOME are not set\n");
    } else if (!state.exists) {
        fmt::print("{} (not there yet; `dflash tune` makes it)\n", cache.folder());
    } else {
        fmt::print("{}: {} choices of `dflash tune`, {} bad files set aside{}\n", cache.folder(), state.files, state.set_aside,
                   state.writable ? "" : "; it cannot be written");
    }
    fmt::print("                 a choice holds for one build (this one is {}), device and shape; without one the built-in default runs\n",
               build_id());
}

int run_doctor(const std::string& draft) {
    const NamedSpecs specs = specs_of(draft);
    print_machine();
    print_attention(specs);
    print_kernels();
    print_cache();
    return 0;
}

}  // namespace

void add_doctor_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand("doctor", "devices, libraries, the kernel each op will run, the state of caches");
    command->footer("Example:\n  dflash doctor --draft runs/a/draft");
    const auto draft = std::make_shared<std::string>();
    command->add_option("--draft", *draft, "a drafter's folder or config.json: the kernels of its layers instead of those of bench/shapes");
    command->callback([draft, &run] { run = [draft] { return run_doctor(*draft); }; });
}

}  // namespace dflash::cli
