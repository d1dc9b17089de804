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

void print_machine() {
    const dnnl_version_t& version = *dnnl_version();
    fmt::print("processor        {}\n", cpu_model());
    fmt::print("threads          {} (OpenMP; --threads or OMP_NUM_THREADS changes it; results are bit-equal for one count)\n",
               omp_get_max_threads());
    fmt::print("memory           {} available\n", format_bytes(host_memory_available_bytes()));
    fmt::print("matrix products  oneDNN {}.{}.{}, {}, fp32\n", version.major, version.minor, version.patch, onednn_isa());
    fmt::print("CUDA             {}\n", cuda_state());
}

int run_doctor() {
    print_machine();
    return 0;
}

}  // namespace

void add_doctor_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand("doctor", "devices, libraries, the kernel each op will run, the state of caches");
    command->footer("Example:\n  dflash doctor");
    command->callback([&run] { run = run_doctor; });
}

}  // namespace dflash::cli
