// SPDX-License-Identifier: MIT
#include "tensor/plan.h"

#include <algorithm>
#include <unordered_set>

#include "base/check.h"

namespace dflash {
namespace {

std::size_t padded(std::size_t bytes) { return (bytes + kPlanAlignment - 1) / kPlanAlignment * kPlanAlignment; }

bool overlap(const Lifetime& a, const Lifetime& b) { return a.first <= b.last && b.first <= a.last; }

void check_buffers(const std::vector<std::string>& phases, const std::vector<BufferSpec>& buffers) {
    std::unordered_set<std::string> names;
    for (const BufferSpec& spec : buffers) {
        DFLASH_CHECK(names.insert(spec.name).second, "buffer '{}' is planned twice", spec.name);
        DFLASH_CHECK(
            spec.lifetime.first >= 0 && spec.lifetime.first <= spec.lifetime.last && spec.lifetime.last < static_cast<int>(phases.size()),
            "buffer '{}' lives in phases {}..{} of {}", spec.name, spec.lifetime.first, spec.lifetime.last, phases.size());
    }
}

}  // namespace

const char* category_name(Category category) {
    switch (category) {
        case Category::kWeights: return "weights";
        case Category::kMaster: return "master";
        case Category::kMoments: return "moments";
        case Category::kGradients: return "gradients";
        case Category::kActivations: return "activations";
        case Category::kLossChunk: return "loss chunk";
        case Category::kWorkspace: return "workspaces";
        case Category::kTarget: return "target";
        case Category::kInput: return "input";
    }
    return "?";
}

std::size_t Plan::phase_bytes(int phase) const {
    std::size_t total = 0;
    for (int c = 0; c < kNumCategories; ++c) total += category_bytes(phase, static_cast<Category>(c));
    return total;
}

std::size_t Plan::category_bytes(int phase, Category category) const {
    std::size_t total = 0;
    for (const PlacedBuffer& buffer : buffers) {
        const Lifetime& life = buffer.spec.lifetime;
        if (buffer.spec.category == category && life.first <= phase && phase <= life.last) {
            total += padded(buffer.spec.bytes());
        }
    }
    return total;
}

std::size_t Plan::lower_bound_bytes() const {
    std::size_t peak = 0;
    for (int phase = 0; phase < static_cast<int>(phases.size()); ++phase) peak = std::max(peak, phase_bytes(phase));
    return peak;
}

Plan make_plan(std::vector<std::string> phases, std::vector<BufferSpec> buffers) {
    check_buffers(phases, buffers);
    Plan plan;
    plan.phases = std::move(phases);
    const int last_phase = static_cast<int>(plan.phases.size()) - 1;
    const auto persistent = [&](const BufferSpec& s) { return s.lifetime.first == 0 && s.lifetime.last == last_phase; };
    std::stable_sort(buffers.begin(), buffers.end(), [&](const BufferSpec& a, const BufferSpec& b) {
        if (persistent(a) != persistent(b)) return persistent(a);
        return !persistent(a) && a.bytes() > b.bytes();
    });
    std::vector<const PlacedBuffer*> neighbours;
    plan.buffers.reserve(buffers.size());
    for (BufferSpec& spec : buffers) {
        neighbours.clear();
        for (const PlacedBuffer& placed : plan.buffers) {
            if (overlap(placed.spec.lifetime, spec.lifetime)) neighbours.push_back(&placed);
        }
        std::sort(neighbours.begin(), neighbours.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
        std::size_t offset = 0;
        for (const PlacedBuffer* other : neighbours) {
            if (offset + padded(spec.bytes()) <= other->offset) break;
            offset = std::max(offset, other->offset + padded(other->spec.bytes()));
        }
        plan.arena_bytes = std::max(plan.arena_bytes, offset + padded(spec.bytes()));
        plan.buffers.push_back({std::move(spec), offset});
    }
    return plan;
}

}  // namespace dflash
