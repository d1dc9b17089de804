// SPDX-License-Identifier: MIT
// `dflash doctor`: this machine, the libraries, the kernel each op will run, and the state of caches.
#include <fmt/core.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "base/byte_size.h"
#include "base/host_memory.h"
#include "cli/command.h"
#include "kernels/backends.h"
#include "kernels/cpu/vector_isa.h"

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

std::string cuda_state() {
    const bool driver = std::filesystem::exists("/proc/driver/nvidia/version");
    return std::string("not built into this binary; ") + (driver ? "an NVIDIA driver is present" : "no NVIDIA driver found");
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

int run_doctor() {
    print_machine();
    print_kernels();
    fmt::print(
        "\ncaches           none on the CPU: nothing is compiled or tuned at run time but oneDNN's products, made before the first step\n");
    return 0;
}

}  // namespace

void add_doctor_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand("doctor", "devices, libraries, the kernel each op will run, the state of caches");
    command->footer("Example:\n  dflash doctor");
    command->callback([&run] { run = run_doctor; });
}

}  // namespace dflash::cli
