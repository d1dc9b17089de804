// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/bf16.h"
#include "base/check.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/safetensors_header.h"
#include "io/temporary_file.h"

namespace dflash {

namespace {

constexpr std::size_t kHeaderAlignment = 8;

const char* safetensors_name(DType dtype) {
    switch (dtype) {
        case DType::kF32: return "F32";
        case DType::kF16: return "F16";
        case DType::kBF16: return "BF16";
        case DType::kI32: return "I32";
        case DType::kI64: return "I64";
        case DType::kU8: return "U8";
        case DType::kU16: return "U16";
        case DType::kF64: return "F64";
    }
    return "?";
}

struct Slot {
    std::string dtype;
    std::uint64_t begin = 0, bytes = 0;  // behind the header
    std::uint64_t written = 0;           // bytes
};

}  // namespace

struct SafetensorsWriter::State {
    explicit State(const std::string& final_path) : path(final_path), file(final_path) {}

    // Where the next `bytes` of tensor `name` go in the file.
    std::uint64_t claim(const std::string& name, std::size_t bytes) {
        const auto found = slots.find(name);
        DFLASH_CHECK(found != slots.end(), "{}: tensor '{}' was not declared", path, name);
        Slot& slot = found->second;
        DFLASH_CHECK(slot.written + bytes <= slot.bytes, "{}: tensor '{}' was declared with {} bytes and is written with {}", path, name,
                     slot.bytes, slot.written + bytes);
        const std::uint64_t at = data_begin + slot.begin + slot.written;
        slot.written += bytes;
        return at;
    }

    std::string path;
    TemporaryFile file;
    std::uint64_t data_begin = 0;
    std::unordered_map<std::string, Slot> slots;
};

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<Declared>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : state_(std::make_unique<State>(path)) {
    std::vector<const Declared*> order;
    for (const Declared& tensor : tensors) {
        DFLASH_CHECK(safetensors_dtype_bytes(tensor.dtype) > 0, "{}: tensor '{}' has unknown dtype {}", path, tensor.name, tensor.dtype);
        order.push_back(&tensor);
    }
    std::stable_sort(order.begin(), order.end(), [](const Declared* a, const Declared* b) {
        return safetensors_dtype_bytes(a->dtype) > safetensors_dtype_bytes(b->dtype);
    });
    // The header goes out piece by piece behind its length, which is known last.
    std::uint64_t at = 8;
    const auto put = [&](const std::string& text) {
        state_->file.write_at(at, text.data(), text.size());
        at += text.size();
    };
    put("{");
    if (!metadata.empty()) put("\"__metadata__\":" + Json(metadata).dump() + (order.empty() ? "" : ","));
    std::uint64_t begin = 0;
    for (const Declared* tensor : order) {
        std::uint64_t bytes = safetensors_dtype_bytes(tensor->dtype);
        for (const std::int64_t dim : tensor->shape) bytes *= static_cast<std::uint64_t>(dim);
        const bool is_new = state_->slots.emplace(tensor->name, Slot{tensor->dtype, begin, bytes, 0}).second;
        DFLASH_CHECK(is_new, "{}: tensor '{}' is declared twice", path, tensor->name);
        put(fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}{}", Json(tensor->name).dump(), tensor->dtype,
                        Json(tensor->shape).dump(), begin, begin + bytes, tensor == order.back() ? "" : ","));
        begin += bytes;
    }
    put("}");
    put(std::string((kHeaderAlignment - at % kHeaderAlignment) % kHeaderAlignment, ' '));
    state_->data_begin = at;
    std::array<unsigned char, 8> length{};
    for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<unsigned char>((at - 8) >> (8 * i));
    state_->file.write_at(0, length.data(), length.size());
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(const std::string& name, const void* data, std::size_t bytes) {
    state_->file.write_at(state_->claim(name, bytes), data, bytes);
}

void SafetensorsWriter::write(const std::string& name, const Tensor& tensor) {
    const auto slot = state_->slots.find(name);
    DFLASH_CHECK(slot != state_->slots.end(), "{}: tensor '{}' was not declared", state_->path, name);
    if (tensor.dtype != DType::kF32 || slot->second.dtype != "BF16") {
        DFLASH_CHECK(slot->second.dtype == safetensors_name(tensor.dtype), "{}: tensor '{}' was declared {} and is {}", state_->path, name,
                     slot->second.dtype, safetensors_name(tensor.dtype));
        write(name, tensor.data, tensor.bytes());
        return;
    }
    const auto count = static_cast<std::size_t>(tensor.elements());
    const float* values = tensor.f32();
    std::uint64_t at = state_->claim(name, count * sizeof(std::uint16_t));
    std::array<std::uint16_t, 16384> block;  // small enough that saving takes no large allocation
    for (std::size_t begin = 0; begin < count; begin += block.size()) {
        const std::size_t n = std::min(block.size(), count - begin);
        std::transform(values + begin, values + begin + n, block.begin(), float_to_bf16);
        state_->file.write_at(at, block.data(), n * sizeof(std::uint16_t));
        at += n * sizeof(std::uint16_t);
    }
}

void SafetensorsWriter::finish() {
    for (const auto& [name, slot] : state_->slots) {
        DFLASH_CHECK(slot.written == slot.bytes, "{}: tensor '{}' was declared with {} bytes, {} were written", state_->path, name,
                     slot.bytes, slot.written);
    }
    state_->file.commit();
}

}  // namespace dflash
