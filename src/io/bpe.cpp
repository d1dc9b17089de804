// SPDX-License-Identifier: MIT
#include "io/bpe.h"

#include <algorithm>
#include <functional>

namespace dflash {

namespace {

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}

}  // namespace

void Bpe::add_merge(std::int32_t left, std::int32_t right, std::int32_t rank, std::int32_t merged) {
    merges_[pair_key(left, right)] = {rank, merged};
}

const Bpe::Merge* Bpe::find(std::int32_t left, std::int32_t right) const {
    const auto merge = merges_.find(pair_key(left, right));
    return merge == merges_.end() ? nullptr : &merge->second;
}

// The symbols of one word as a linked list, and the merges that were possible when they were queued. One a thread keeps its storage.
class WordMerger {
public:
    void start(std::string_view word, const Bpe& bpe) {
        symbols_.clear();
        queue_.clear();
        for (const char c : word) symbols_.push_back({bpe.byte_tokens[static_cast<unsigned char>(c)], here() - 1, here() + 1});
        symbols_.back().next = kNone;
        for (std::int32_t i = 0; i + 1 < here(); ++i) queue_pair(i, bpe);
    }

    void merge_all(const Bpe& bpe) {
        while (!queue_.empty()) {
            std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
            const Candidate best = queue_.back();
            queue_.pop_back();
            Symbol& left = at(best.position);
            if (left.id == Bpe::kNoToken || left.next == kNone) continue;
            Symbol& right = at(left.next);
            const Bpe::Merge* merge = bpe.find(left.id, right.id);
            if (merge == nullptr || merge->rank != best.rank) continue;  // one of the two has grown since
            left.id = merge->id;
            right.id = Bpe::kNoToken;  // gone
            left.next = right.next;
            if (left.next != kNone) at(left.next).previous = best.position;
            if (left.previous != kNone) queue_pair(left.previous, bpe);
            queue_pair(best.position, bpe);
        }
    }

    void append_to(std::vector<std::int32_t>& ids) const {
        for (std::int32_t i = 0; i != kNone; i = symbols_[static_cast<std::size_t>(i)].next) {
            ids.push_back(symbols_[static_cast<std::size_t>(i)].id);
        }
    }

private:
    static constexpr std::int32_t kNone = -1;
    struct Symbol {
        std::int32_t id;
        std::int32_t previous;
        std::int32_t next;
    };
    struct Candidate {
        std::int32_t rank;
        std::int32_t position;
        auto operator<=>(const Candidate&) const = default;
    };

    std::int32_t here() const { return static_cast<std::int32_t>(symbols_.size()); }
    Symbol& at(std::int32_t position) { return symbols_[static_cast<std::size_t>(position)]; }

    void queue_pair(std::int32_t position, const Bpe& bpe) {
        const std::int32_t next = at(position).next;
        if (next == kNone) return;
        if (const Bpe::Merge* merge = bpe.find(at(position).id, at(next).id)) {
            queue_.push_back({merge->rank, position});
            std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
        }
    }

    std::vector<Symbol> symbols_;
    std::vector<Candidate> queue_;  // a heap, the lowest (rank, position) first
};

std::optional<unsigned char> Bpe::encode(std::string_view word, std::vector<std::int32_t>& ids) const {
    if (word.empty()) return std::nullopt;
    for (const char c : word) {
        if (byte_tokens[static_cast<unsigned char>(c)] == kNoToken) return static_cast<unsigned char>(c);
    }
    thread_local WordMerger merger;
    merger.start(word, *this);
    merger.merge_all(*this);
    merger.append_to(ids);
    return std::nullopt;
}

}  // namespace dflash
