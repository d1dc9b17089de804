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

namespace {

// Buffers in the order in which they are placed.
using Order = std::vector<PlacedBuffer>;

// Each buffer at the lowest offset that is free over its whole lifetime, those before it in the order being placed. Bytes in all.
std::size_t place(Order& order) {
    std::vector<const PlacedBuffer*> neighbours;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
        PlacedBuffer& buffer = order[i];
        const std::size_t size = padded(buffer.spec.bytes());
        neighbours.clear();
        for (std::size_t j = 0; j < i; ++j) {
            if (overlap(order[j].spec.lifetime, buffer.spec.lifetime)) neighbours.push_back(&order[j]);
        }
        std::sort(neighbours.begin(), neighbours.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
        buffer.offset = 0;
        for (const PlacedBuffer* other : neighbours) {
            if (buffer.offset + size <= other->offset) break;
            buffer.offset = std::max(buffer.offset, other->offset + padded(other->spec.bytes()));
        }
        bytes = std::max(bytes, buffer.offset + size);
    }
    return bytes;
}

// Which of two buffers is placed first.
using Before = bool (*)(const BufferSpec& a, const BufferSpec& b);

double area(const BufferSpec& s) { return static_cast<double>(s.bytes()) * (s.lifetime.last - s.lifetime.first + 1); }

// No single order is best for every mixture of lifetimes; these four are quick, and one of them comes within a percent of the bound.
constexpr Before kOrders[] = {
    [](const BufferSpec& a, const BufferSpec& b) { return a.bytes() > b.bytes(); },
    [](const BufferSpec& a, const BufferSpec& b) { return area(a) > area(b); },
    [](const BufferSpec& a, const BufferSpec& b) {
        return a.lifetime.first != b.lifetime.first ? a.lifetime.first < b.lifetime.first : a.lifetime.last > b.lifetime.last;
    },
    [](const BufferSpec& a, const BufferSpec& b) {
        return a.lifetime.last != b.lifetime.last ? a.lifetime.last > b.lifetime.last : a.lifetime.first < b.lifetime.first;
    }};

}  // namespace

Plan make_plan(std::vector<std::string> phases, std::vector<BufferSpec> buffers) {
    check_buffers(phases, buffers);
    Plan plan;
    plan.phases = std::move(phases);
    const int last_phase = static_cast<int>(plan.phases.size()) - 1;
    const auto persistent = [&](const BufferSpec& s) { return s.lifetime.first == 0 && s.lifetime.last == last_phase; };
    Order order;
    for (BufferSpec& spec : buffers) order.push_back({std::move(spec), 0});
    const auto transients =
        std::stable_partition(order.begin(), order.end(), [&](const PlacedBuffer& buffer) { return persistent(buffer.spec); });
    for (const Before before : kOrders) {
        std::stable_sort(transients, order.end(), [&](const PlacedBuffer& a, const PlacedBuffer& b) { return before(a.spec, b.spec); });
        const std::size_t bytes = place(order);
        if (!plan.buffers.empty() && bytes >= plan.arena_bytes) continue;
        plan.arena_bytes = bytes;
        plan.buffers = order;
    }
    return plan;
}

}  // namespace dflash
