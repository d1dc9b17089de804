// SPDX-License-Identifier: MIT
// The memory plan: named buffers with lifetimes in phases -> offsets in one arena. A pure function: it needs no device
// and no weights. Stages export their buffer lists (BufferSpec); train composes them; Arena allocates exactly the result.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace dflash {

enum class Category { kWeights, kMaster, kMoments, kGradients, kActivations, kLossChunk, kWorkspace, kTarget, kInput };
const char* category_name(Category category);
constexpr int kNumCategories = 9;

// Phases first..last, both included. Buffers whose lifetimes do not meet may share memory.
struct Lifetime {
    int first = 0;
    int last = 0;
};

struct BufferSpec {
    std::string name;  // unique within a plan; stages prefix theirs: "target.", "draft.", "optimizer."
    DType dtype = DType::kF32;
    Shape shape;
    Category category = Category::kActivations;
    Lifetime lifetime;
    std::size_t bytes() const { return static_cast<std::size_t>(shape.elements()) * dtype_bytes(dtype); }
};

struct PlacedBuffer {
    BufferSpec spec;
    std::size_t offset = 0;  // bytes from the arena's start, a multiple of kPlanAlignment
};

constexpr std::size_t kPlanAlignment = 256;

struct Plan {
    std::vector<std::string> phases;
    std::vector<PlacedBuffer> buffers;
    std::size_t arena_bytes = 0;

    // Bytes alive in a phase, padding included; and of one category in a phase.
    std::size_t phase_bytes(int phase) const;
    std::size_t category_bytes(int phase, Category category) const;
    // The largest phase_bytes: no placement can need less.
    std::size_t lower_bound_bytes() const;
};

// Places every buffer. Throws Error(kFailed) on a repeated name or a lifetime outside the phases.
// Algorithm: persistent buffers first, then greedy by size at the lowest offset that is free over the whole lifetime
// (as in Pisarchyk & Lee, "Efficient memory management for deep neural net inference", 2020); by size x lifetime, by first
// and by last phase as well, and the smallest plan of the four is taken.
Plan make_plan(std::vector<std::string> phases, std::vector<BufferSpec> buffers);

}  // namespace dflash
