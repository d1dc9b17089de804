// SPDX-License-Identifier: MIT
#include "kernels/delta_rule.h"

#include "kernels/backends.h"
#include "kernels/checks.h"
#include "tensor/working_dtype.h"

namespace dflash {
namespace {

void check_rule(const Context& context, const char* op, const DeltaRuleParams& p) {
    DFLASH_CHECK(p.key_heads > 0 && p.value_heads > 0 && p.value_heads % p.key_heads == 0 && p.key_dim > 0 && p.value_dim > 0,
                 "{}: {} key heads of {}, {} value heads of {}", op, p.key_heads, p.key_dim, p.value_heads, p.value_dim);
    const std::int64_t rows = p.qkv.rows();
    const DType working = working_dtype(context.device());
    check_rows(context, op, "qkv", p.qkv, working, rows, 2 * p.key_heads * p.key_dim + p.value_heads * p.value_dim);
    check_rows(context, op, "b", p.b, working, rows, p.value_heads);
    check_rows(context, op, "a", p.a, working, rows, p.value_heads);
    check_vector(context, op, "a_log", p.a_log, DType::kF32, p.value_heads);
    check_vector(context, op, "dt_bias", p.dt_bias, DType::kF32, p.value_heads);
    check_rows(context, op, "out", p.out, working, rows, p.value_heads * p.value_dim);
    check_vector(context, op, "document_begin", p.document_begin, DType::kI32, p.document_begin.elements());
    if (p.state.defined()) {
        check_vector(context, op, "state", p.state, DType::kF32, p.value_heads * p.key_dim * p.value_dim);
        DFLASH_CHECK(p.document_begin.elements() == 2, "{}: a running state belongs to one document, not {}", op,
                     p.document_begin.elements() - 1);
    }
}

}  // namespace

void causal_conv_silu_forward(const Context& context, const CausalConvParams& p) {
    const char* op = "causal_conv_silu";
    DFLASH_CHECK(p.x.shape.rank() == 2 && p.weight.shape.rank() == 2, "{}: x is {}, weight is {}", op, p.x.shape.to_string(),
                 p.weight.shape.to_string());
    const std::int64_t rows = p.x.shape[0];
    const std::int64_t channels = p.x.shape[1];
    const DType working = working_dtype(context.device());
    check_rows(context, op, "x", p.x, working, rows, channels);
    check_rows(context, op, "weight", p.weight, working, channels, p.weight.shape[1]);
    check_rows(context, op, "y", p.y, working, rows, channels);
    check_vector(context, op, "document_begin", p.document_begin, DType::kI32, p.document_begin.elements());
    DFLASH_CHECK(rows == 0 || p.x.data != p.y.data, "{}: y may not be x", op);
    if (p.history.defined()) {
        check_rows(context, op, "history", p.history, working, p.weight.shape[1] - 1, channels);
        DFLASH_CHECK(p.document_begin.elements() == 2, "{}: a history belongs to one document, not {}", op,
                     p.document_begin.elements() - 1);
    }
    if (rows > 0) on_device(context.device(), cpu::causal_conv_silu_forward, cuda::causal_conv_silu_forward)(context, p);
}

void conv_history_append(const Context& context, const Tensor& x, const Tensor& history) {
    const DType working = working_dtype(context.device());
    check_rows(context, "conv_history_append", "x", x, working, x.rows(), history.row_elements());
    check_rows(context, "conv_history_append", "history", history, working, history.rows(), history.row_elements());
    if (x.rows() > 0 && history.rows() > 0) {
        on_device(context.device(), cpu::conv_history_append, cuda::conv_history_append)(context, x, history);
    }
}

void delta_rule_chunk_forward(const Context& context, const DeltaRuleParams& p) {
    check_rule(context, "delta_rule_chunk", p);
    DFLASH_CHECK(!p.states_after.defined(), "delta_rule_chunk: states after each row come from the recurrent form only");
    if (p.qkv.rows() > 0) on_device(context.device(), cpu::delta_rule_chunk_forward, cuda::delta_rule_chunk_forward)(context, p);
}

std::size_t delta_rule_workspace_bytes(Device device, const DeltaRuleParams& shapes) {
    return on_device(device, cpu::delta_rule_workspace_bytes, cuda::delta_rule_workspace_bytes)(shapes);
}

void delta_rule_recurrent_forward(const Context& context, const DeltaRuleParams& p) {
    check_rule(context, "delta_rule_recurrent", p);
    if (p.states_after.defined()) {
        check_rows(context, "delta_rule_recurrent", "states_after", p.states_after, DType::kF32, p.qkv.rows(),
                   p.value_heads * p.key_dim * p.value_dim);
    }
    if (p.qkv.rows() > 0) on_device(context.device(), cpu::delta_rule_recurrent_forward, cuda::delta_rule_recurrent_forward)(context, p);
}

}  // namespace dflash
