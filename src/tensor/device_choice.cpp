// SPDX-License-Identifier: MIT
#include "tensor/device_choice.h"

#include "base/error.h"
#include "tensor/cuda_runtime.h"

namespace dflash {

Device device_of_name(const std::string& name) { return {name == "cuda" ? DeviceType::kCuda : DeviceType::kCpu, 0}; }

const char* device_type_name(Device device) { return device.type == DeviceType::kCuda ? "cuda" : "cpu"; }

Device choose_device(const std::string& wanted) {
    if (wanted != "auto" && wanted != "cpu" && wanted != "cuda") throw_bad_input("--device is '{}'; it must be auto, cpu or cuda", wanted);
    if (wanted == "cuda" && !cuda::is_built()) {
        throw_bad_input(
            "--device cuda: this program was built without CUDA; build it where the CUDA toolkit is installed, or use --device cpu");
    }
    if (wanted == "cuda" && cuda::device_count() == 0) {
        throw_bad_input("--device cuda: no GPU is visible here; see nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu");
    }
    return {wanted != "cpu" && cuda::is_built() && cuda::device_count() > 0 ? DeviceType::kCuda : DeviceType::kCpu, 0};
}

}  // namespace dflash
