// SPDX-License-Identifier: MIT
// A proposer that knows the text to come and is right or wrong as told. It checks what the loop hands it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "generate/proposer.h"
#include "tensor/buffer.h"

namespace dflash::testing {

class ScriptedProposer final : public Proposer {
public:
    // is_right(step, draft): whether that draft, from 0, equals the known text; positions beyond the text are always wrong.
    using Rule = std::function<bool(std::int64_t step, std::int64_t draft)>;

    ScriptedProposer(const DraftSpec& spec, std::vector<std::int32_t> text, Rule is_right, Device device = {})
        : spec_(spec),
          text_(std::move(text)),
          is_right_(std::move(is_right)),
          logits_(device, DType::kF32, {spec.block_size - spec.first_weighted_slot(), spec.vocabulary}) {}

    void reset() override { length_ = step_ = 0; }
    void append_context(const Context&, const Tensor& taps) override {
        EXPECT_EQ(taps.row_elements(), static_cast<std::int64_t>(spec_.taps.size()) * spec_.hidden);
        length_ += taps.rows();
    }
    Tensor propose(const Context& context, std::int32_t anchor) override {
        EXPECT_EQ(anchor, text_[static_cast<std::size_t>(length_)]) << "at position " << length_;
        const Tensor& logits = logits_;
        std::vector<float> values(static_cast<std::size_t>(logits.elements()), 0.0F);
        for (std::int64_t i = 0; i < max_drafts(); ++i) {
            const auto position = static_cast<std::size_t>(length_ + 1 + i);
            std::int32_t token = position < text_.size() ? text_[position] : 0;
            if (!is_right_(step_, i)) token = static_cast<std::int32_t>((token + 1) % spec_.vocabulary);
            values[static_cast<std::size_t>(i * spec_.vocabulary + token)] = 1;
        }
        context.upload(values.data(), logits);
        ++step_;
        return logits;
    }
    std::int64_t length() const override { return length_; }
    std::int64_t max_drafts() const override { return spec_.block_size - spec_.first_weighted_slot(); }
    std::int64_t first_slot() const override { return spec_.first_weighted_slot(); }
    std::int64_t max_positions() const override { return spec_.max_positions; }

private:
    DraftSpec spec_;
    std::vector<std::int32_t> text_;
    Rule is_right_;
    DeviceBuffer logits_;
    std::int64_t length_ = 0;
    std::int64_t step_ = 0;
};

}  // namespace dflash::testing
