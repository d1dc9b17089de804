// SPDX-License-Identifier: MIT
#include "generate/proposer.h"

#include <algorithm>

namespace dflash {
namespace {

class DraftProposer final : public Proposer {
public:
    DraftProposer(const DraftModel& model, const DraftSessionSettings& settings, const Arena& arena)
        : spec_(model.spec), max_append_(settings.max_append), session_(model, settings, arena) {}

    void reset() override { session_.reset(); }
    void append_context(const Context& context, const Tensor& taps) override {
        for (std::int64_t row = 0; row < taps.rows(); row += max_append_) {
            session_.append_context(context, taps.slice_rows(row, std::min(max_append_, taps.rows() - row)));
        }
    }
    Tensor propose(const Context& context, std::int32_t anchor) override {
        return session_.propose(context, anchor).slice_rows(first_slot(), max_drafts());
    }
    std::int64_t length() const override { return session_.length(); }
    std::int64_t max_drafts() const override { return spec_.block_size - first_slot(); }
    std::int64_t first_slot() const override { return spec_.first_weighted_slot(); }
    std::int64_t max_positions() const override { return spec_.max_positions; }

private:
    DraftSpec spec_;
    std::int64_t max_append_;
    DraftSession session_;
};

}  // namespace

std::unique_ptr<Proposer> make_draft_proposer(const DraftModel& model, const DraftSessionSettings& settings, const Arena& arena) {
    return std::make_unique<DraftProposer>(model, settings, arena);
}

}  // namespace dflash
