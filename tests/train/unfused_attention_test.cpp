// SPDX-License-Identifier: MIT
// The attention that keeps its scores in memory agrees with the fused one: two implementations that share no code but the contract.
#include "train/unfused_attention.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/device_case.h"
#include "support/device_values.h"
#include "train/attention_workload.h"

namespace dflash {
namespace {

struct Case {
    std::string name;
    std::int64_t heads, kv_heads, head_dim, block_size, window;
    bool causal_block;
};

class UnfusedAttentions : public testing::DeviceCases<Case> {
protected:
    std::vector<std::vector<double>> results(const AnchorAttentionBackwardParams& p) const {
        std::vector<std::vector<double>> all;
        for (const Tensor* tensor : {&p.out, &p.d_q, &p.d_k_context, &p.d_v_context, &p.d_k_block, &p.d_v_block}) {
            all.push_back(testing::doubles_of(context(), *tensor));
        }
        return all;
    }
};

TEST_P(UnfusedAttentions, AgreeWithTheFusedOne) {
    const AttentionShape shape{.name = "small",
                               .context = 90,
                               .anchors = 17,
                               .documents = 3,
                               .window = c_.window,
                               .causal_block = c_.causal_block,
                               .seed = 5,
                               .heads = c_.heads,
                               .kv_heads = c_.kv_heads,
                               .head_dim = c_.head_dim,
                               .block_size = c_.block_size};
    const AttentionWorkload workload(context(), shape);
    workload.forward();
    workload.backward();
    const auto fused = results(workload.tensors());
    const AnchorAttentionBackwardParams p = workload.tensors();
    for (const Tensor* output : {&p.out, &p.d_q, &p.d_k_context, &p.d_v_context, &p.d_k_block, &p.d_v_block}) {
        const std::vector<unsigned char> poison(output->bytes(), 0xff);  // NaN
        context().upload(poison.data(), *output);
    }
    const UnfusedAttention unfused(context(), p);
    unfused.forward();
    unfused.backward();
    const auto plain = results(workload.tensors());
    const char* names[] = {"out", "d_q", "d_k_context", "d_v_context", "d_k_block", "d_v_block"};
    for (std::size_t i = 0; i < fused.size(); ++i) {
        EXPECT_TRUE(testing::close(std::span<const double>(plain[i]), std::span<const double>(fused[i]), tolerance(testing::kGradientF32)))
            << names[i];
    }
}

DFLASH_CASES_ON_EACH_DEVICE(Cases, UnfusedAttentions,
                            ::testing::Values(Case{"full", 4, 2, 64, 4, 0, false}, Case{"causal_blocks", 3, 3, 64, 5, 0, true},
                                              Case{"window", 8, 2, 64, 8, 12, true},
                                              Case{"window_shorter_than_a_block", 2, 1, 64, 7, 3, false}));

}  // namespace
}  // namespace dflash
