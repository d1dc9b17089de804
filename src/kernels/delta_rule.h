// SPDX-License-Identifier: MIT
// The gated delta rule of the hybrid targets and the small ops around it. Equations: docs/notation.md and the gated delta network
// paper (Yang et al., "Gated Delta Networks", 2024). Forward only. Documents are isolated: convolution taps and states start
// from zero at each document, and chunks never straddle a border. Tensors without a dtype here are in the device's working dtype.
//   conv      y[t,c] = silu(sum_j w[c,j] u[t-(K-1)+j, c])
//   qk        q = l2norm(q) / sqrt(dk), k = l2norm(k), eps 1e-6 inside the root (sum, not mean)
//   gates     beta = sigmoid(b), g = -exp(A_log) softplus(a + dt_bias)   (log of the decay, <= 0)
//   rule      S <- e^g S;  d = beta (v - S^T k);  S <- S + k d^T;  o = S^T q        value head h uses key head h / (nv / nk)
#pragma once

#include "kernels/context.h"
#include "tensor/tensor.h"

namespace dflash {

struct CausalConvParams {
    Tensor x;               // (rows, channels)
    Tensor weight;          // (channels, K), newest tap last
    Tensor document_begin;  // i32 (documents + 1): row borders of the packed documents
    Tensor history;         // optional (K - 1, channels): inputs just before row 0 of a single running document
    Tensor y;               // (rows, channels), =; not x
};
void causal_conv_silu_forward(const Context& context, const CausalConvParams& params);
// history (K - 1, channels): the last K - 1 rows of history followed by x (rows, channels). What the next call's first rows look back on.
void conv_history_append(const Context& context, const Tensor& x, const Tensor& history);

struct DeltaRuleParams {
    Tensor qkv;      // (rows, 2 nk dk + nv dv): convolved q of all key heads, k of all, v of all value heads (un-normalised)
    Tensor b;        // (rows, nv)
    Tensor a;        // (rows, nv)
    Tensor a_log;    // f32 (nv)
    Tensor dt_bias;  // f32 (nv)
    std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
    Tensor document_begin;  // i32 (documents + 1)
    // For decoding (one document): the running state, read and overwritten. Undefined: every document starts from zero.
    Tensor state;  // optional f32 (nv, dk, dv)
    // Optional f32 (rows, nv, dk, dv), =: the state after each row, so that rejected tokens can be undone (recurrent form only).
    Tensor states_after;
    Tensor out;  // (rows, nv, dv), =
};
// Chunk form (64 rows): prefill and training features. Scratch comes from the context's workspace: delta_rule_workspace_bytes().
void delta_rule_chunk_forward(const Context& context, const DeltaRuleParams& params);
std::size_t delta_rule_workspace_bytes(Device device, const DeltaRuleParams& shapes);
// Token by token: decoding. A row depends on the state and the rows before it only.
void delta_rule_recurrent_forward(const Context& context, const DeltaRuleParams& params);

}  // namespace dflash
