// SPDX-License-Identifier: MIT
// Logits of a device as the host's choices need them: for a greedy choice one token a row, found on the device; for sampling all values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/context.h"
#include "tensor/arena.h"
#include "tensor/buffer.h"
#include "tensor/plan.h"

namespace dflash {

// Rows of logits in host memory: their values, or, where nothing else is asked for, their best tokens alone.
struct LogitRows {
    LogitRows(const Tensor& host_values) : values(host_values) {}      // NOLINT(google-explicit-constructor): host logits are such rows
    LogitRows(const HostBuffer& host_values) : values(host_values) {}  // NOLINT(google-explicit-constructor)
    explicit LogitRows(std::span<const std::int32_t> best_tokens) : best(best_tokens) {}

    std::int64_t rows() const { return values.defined() ? values.rows() : std::ssize(best); }
    std::span<const float> row(std::int64_t index) const {
        const std::int64_t width = values.row_elements();
        return {values.f32() + index * width, static_cast<std::size_t>(width)};
    }
    // The first of the largest values of a row. Throws Error(kFailed) when one is NaN: `what` names the row.
    std::int32_t best_token(std::int64_t index, const char* what) const;

    Tensor values;                       // f32 (rows, V)
    std::span<const std::int32_t> best;  // (rows), -1: NaN among the values
};

class LogitReader {
public:
    // `max_rows`: of one call. On the CPU nothing is planned, and rows are read where they are.
    static std::vector<BufferSpec> buffers(Device device, std::int64_t max_rows, Lifetime lifetime);
    LogitReader(Device device, const Arena& arena);

    // f32 (rows, V) after all ops so far, which are waited for; valid until the next call.
    LogitRows read(const Context& context, const Tensor& logits, bool greedy);

private:
    Tensor best_;                          // i32 (max_rows), CUDA only
    std::vector<std::int32_t> host_best_;  // reserved once
    std::vector<float> host_values_;       // taken at the first sampled choice
};

}  // namespace dflash
