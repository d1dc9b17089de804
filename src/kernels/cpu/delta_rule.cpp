// SPDX-License-Identifier: MIT
// Gated delta rule on the CPU. Chunk form: chunks of 64 rows counted from the document's first token, dense products inside, the state
// carried from chunk to chunk; unit of work (document, value head). Recurrent form: unit of work one value head, row by row. With
// G_i the sum of the chunk's log decays up to row i, and q, k normalised:
//   D_ij = e^(G_i - G_j) for i >= j;  A_ij = beta_i (k_i . k_j) D_ij for i > j;  P_ij = (q_i . k_j) D_ij for i >= j
//   (I + A) [U | W] = [beta V | -beta e^G K];   N = U + W S;   O = e^G Q S + P N;   S <- e^(G_n) S + (e^(G_n - G) K)^T N
// Only exponents <= 0 occur. See Yang et al., "Gated Delta Networks", 2024, for the derivation.
#include "kernels/delta_rule.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/backends.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/delta_rule.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/small_matmul-inl.h"

#ifndef DFLASH_KERNELS_CPU_DELTA_RULE_ONCE
#define DFLASH_KERNELS_CPU_DELTA_RULE_ONCE
namespace dflash::cpu {

constexpr std::int64_t kChunk = 64;
constexpr std::int64_t kSolveBlock = 16;
constexpr std::int64_t kMaxConvTaps = 16;
constexpr std::int64_t kConvColumns = 64;

struct ConvJob {
    const float* x;
    const float* weight;
    const float* history;  // null: zeros
    const std::int32_t* document_begin;
    float* y;
    std::int64_t documents, channels, taps;
};

struct DeltaJob {
    const float* qkv;
    const float* b;
    const float* a;
    const float* a_log;
    const float* dt_bias;
    const std::int32_t* document_begin;
    float* state;         // null: every document starts from zero
    float* states_after;  // null: not wanted
    float* out;
    std::int64_t documents, key_heads, value_heads, key_dim, value_dim;

    std::int64_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
    std::int64_t key_head(std::int64_t head) const { return head / (value_heads / key_heads); }
    const float* q_row(std::int64_t row, std::int64_t head) const { return qkv + row * channels() + key_head(head) * key_dim; }
    const float* k_row(std::int64_t row, std::int64_t head) const { return q_row(row, head) + key_heads * key_dim; }
    const float* v_row(std::int64_t row, std::int64_t head) const {
        return qkv + row * channels() + 2 * key_heads * key_dim + head * value_dim;
    }
    float* out_row(std::int64_t row, std::int64_t head) const { return out + (row * value_heads + head) * value_dim; }
    float beta(std::int64_t row, std::int64_t head) const { return 1.0F / (1.0F + std::exp(-b[row * value_heads + head])); }
    float log_decay(std::int64_t row, std::int64_t head) const {
        const float x = a[row * value_heads + head] + dt_bias[head];
        return -std::exp(a_log[head]) * (x > 20.0F ? x : std::log1p(std::exp(x)));
    }
};

// Scratch of one thread, in floats; parts start on cache lines.
struct DeltaScratch {
    float *q, *k_t, *uw, *k_products, *q_products, *state;

    static std::int64_t floats(std::int64_t key_dim, std::int64_t value_dim) { return carve(nullptr, key_dim, value_dim, nullptr); }
    static std::int64_t carve(float* memory, std::int64_t key_dim, std::int64_t value_dim, DeltaScratch* scratch) {
        std::int64_t used = 0;
        const auto take = [&](std::int64_t count) {
            float* part = memory == nullptr ? nullptr : memory + used;
            used += (count + 15) / 16 * 16;
            return part;
        };
        DeltaScratch parts;
        parts.q = take(kChunk * key_dim);                 // (64, dk)
        parts.k_t = take(key_dim * kChunk);               // (dk, 64)
        parts.uw = take(kChunk * (value_dim + key_dim));  // (64, dv + dk): U, then N | W; k before that
        parts.k_products = take(kChunk * kChunk);         // -A
        parts.q_products = take(kChunk * kChunk);         // P
        parts.state = take(key_dim * value_dim);          // (dk, dv) where the caller keeps none
        if (scratch != nullptr) *scratch = parts;
        return used;
    }
};

}  // namespace dflash::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace dflash::cpu::HWY_NAMESPACE {

// One row of the convolution, `count` channels from `channel`; weights are (taps, kConvColumns).
template <class D>
HWY_INLINE std::int64_t convolve_row(D d, const ConvJob& job, std::int64_t row, std::int64_t begin, std::int64_t channel,
                                     const float* weights, std::int64_t offset, std::int64_t count) {
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (; offset + lanes <= count; offset += lanes) {
        auto sum = hn::Zero(d);
        for (std::int64_t j = 0; j < job.taps; ++j) {
            const std::int64_t source = row - (job.taps - 1) + j;
            const float* from = source >= begin          ? job.x + source * job.channels
                                : job.history != nullptr ? job.history + (source - begin + job.taps - 1) * job.channels
                                                         : nullptr;
            if (from == nullptr) continue;
            sum = hn::MulAdd(hn::LoadU(d, weights + j * kConvColumns + offset), hn::LoadU(d, from + channel + offset), sum);
        }
        hn::StoreU(silu(sum), d, job.y + row * job.channels + channel + offset);
    }
    return offset;
}

// All rows of `count` <= kConvColumns channels.
void convolve_columns(const ConvJob& job, std::int64_t channel, std::int64_t count) {
    alignas(64) float weights[kMaxConvTaps * kConvColumns];
    for (std::int64_t c = 0; c < count; ++c) {
        for (std::int64_t j = 0; j < job.taps; ++j) weights[j * kConvColumns + c] = job.weight[(channel + c) * job.taps + j];
    }
    for (std::int64_t document = 0; document < job.documents; ++document) {
        const std::int64_t begin = job.document_begin[document];
        for (std::int64_t row = begin; row < job.document_begin[document + 1]; ++row) {
            const std::int64_t done = convolve_row(Wide(), job, row, begin, channel, weights, 0, count);
            convolve_row(Single(), job, row, begin, channel, weights, done, count);
        }
    }
}

// y = x / sqrt(sum x^2 + 1e-6) * scale; y's elements are `stride` apart.
void l2_normalise(const float* x, std::int64_t n, float scale, float* y, std::int64_t stride) {
    const Wide wide;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(wide));
    auto squares = hn::Zero(wide);
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        const auto part = hn::LoadU(wide, x + i);
        squares = hn::MulAdd(part, part, squares);
    }
    float sum = hn::GetLane(hn::SumOfLanes(wide, squares));
    for (; i < n; ++i) sum += x[i] * x[i];
    const float factor = scale / std::sqrt(sum + 1e-6F);
    for (i = 0; i < n; ++i) y[i * stride] = x[i] * factor;
}

// Scores of both products times the decay between their rows: row i of -A and of P, zero beyond the diagonal.
void weigh_products(std::int64_t i, const float* decay_sum, float beta, float* k_products, float* q_products) {
    const Wide wide;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(wide));
    const auto own = hn::Set(wide, decay_sum[i]);
    const auto minus_beta = hn::Set(wide, -beta);
    for (std::int64_t j = 0; j < kChunk; j += lanes) {
        // beyond the diagonal the difference is positive and may overflow: cut it before the exponential
        const auto decay = exp(hn::Min(hn::Sub(own, hn::LoadU(wide, decay_sum + j)), hn::Zero(wide)));
        hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(wide, k_products + j), minus_beta), decay), wide, k_products + j);
        hn::StoreU(hn::Mul(hn::LoadU(wide, q_products + j), decay), wide, q_products + j);
    }
    std::fill(k_products + i, k_products + kChunk, 0.0F);
    std::fill(q_products + i + 1, q_products + kChunk, 0.0F);
}

// (I + A) X = X in place for X (n, columns), given -A: forward substitution, 16 rows at a time.
void solve_unit_lower(std::int64_t n, std::int64_t columns, const float* minus_a, float* x) {
    for (std::int64_t block = 0; block < n; block += kSolveBlock) {
        const std::int64_t rows = std::min(kSolveBlock, n - block);
        float* x_block = x + block * columns;
        const float* a_block = minus_a + block * kChunk;
        add_matmul(rows, columns, {block, a_block, kChunk, x, columns, x_block, columns});
        for (std::int64_t i = 1; i < rows; ++i) {
            add_matmul(1, columns, {i, a_block + i * kChunk + block, kChunk, x_block, columns, x_block + i * columns, columns});
        }
    }
}

// Rows [row, row + n), n <= 64, of one document and value head; the state (dk, dv) goes from before the chunk to after it.
void delta_chunk(const DeltaJob& job, std::int64_t row, std::int64_t n, std::int64_t head, const DeltaScratch& s, float* state) {
    const std::int64_t dk = job.key_dim;
    const std::int64_t dv = job.value_dim;
    const std::int64_t uw_stride = dv + dk;
    alignas(64) float decay_sum[kChunk] = {};
    float beta[kChunk];
    const float q_scale = 1.0F / std::sqrt(static_cast<float>(dk));
    std::fill(s.k_t, s.k_t + dk * kChunk, 0.0F);
    for (std::int64_t i = 0; i < n; ++i) {
        float* k = s.uw + i * uw_stride + dv;
        l2_normalise(job.q_row(row + i, head), dk, q_scale, s.q + i * dk, 1);
        l2_normalise(job.k_row(row + i, head), dk, 1.0F, k, 1);
        for (std::int64_t d = 0; d < dk; ++d) s.k_t[d * kChunk + i] = k[d];
        beta[i] = job.beta(row + i, head);
        decay_sum[i] = job.log_decay(row + i, head) + (i == 0 ? 0.0F : decay_sum[i - 1]);
    }
    std::fill(s.k_products, s.k_products + n * kChunk, 0.0F);
    std::fill(s.q_products, s.q_products + n * kChunk, 0.0F);
    add_matmul(n, kChunk, {dk, s.uw + dv, uw_stride, s.k_t, kChunk, s.k_products, kChunk});
    add_matmul(n, kChunk, {dk, s.q, dk, s.k_t, kChunk, s.q_products, kChunk});
    for (std::int64_t i = 0; i < n; ++i) {
        weigh_products(i, decay_sum, beta[i], s.k_products + i * kChunk, s.q_products + i * kChunk);
        const float decay = std::exp(decay_sum[i]);
        float* u = s.uw + i * uw_stride;
        std::copy_n(job.v_row(row + i, head), dv, u);
        scale_row(beta[i], u, dv);
        scale_row(-beta[i] * decay, u + dv, dk);
        scale_row(decay, s.q + i * dk, dk);
    }
    solve_unit_lower(n, uw_stride, s.k_products, s.uw);
    add_matmul(n, dv, {dk, s.uw + dv, uw_stride, state, dv, s.uw, uw_stride});  // U becomes N

    const std::int64_t out_stride = job.value_heads * dv;
    float* out = job.out_row(row, head);
    for (std::int64_t i = 0; i < n; ++i) std::fill_n(out + i * out_stride, dv, 0.0F);
    add_matmul(n, dv, {dk, s.q, dk, state, dv, out, out_stride});
    add_matmul(n, dv, {n, s.q_products, kChunk, s.uw, uw_stride, out, out_stride});

    const float last = decay_sum[n - 1];
    for (std::int64_t j = 0; j < n; ++j) decay_sum[j] = std::exp(last - decay_sum[j]);
    for (std::int64_t d = 0; d < dk; ++d) {
        for (std::int64_t j = 0; j < n; ++j) s.k_t[d * kChunk + j] *= decay_sum[j];
    }
    scale_row(std::exp(last), state, dk * dv);
    add_matmul(dk, dv, {n, s.k_t, kChunk, s.uw, uw_stride, state, dv});
}

void delta_document(const DeltaJob& job, std::int64_t document, std::int64_t head, float* memory) {
    DeltaScratch scratch;
    DeltaScratch::carve(memory, job.key_dim, job.value_dim, &scratch);
    float* state = scratch.state;
    if (job.state != nullptr) {
        state = job.state + head * job.key_dim * job.value_dim;
    } else {
        std::fill_n(state, job.key_dim * job.value_dim, 0.0F);
    }
    const std::int64_t end = job.document_begin[document + 1];
    for (std::int64_t row = job.document_begin[document]; row < end; row += kChunk) {
        delta_chunk(job, row, std::min(kChunk, end - row), head, scratch, state);
    }
}

// One row of the recurrence for one head. `recalled` and `read` are (dv) scratch.
void delta_row(const DeltaJob& job, std::int64_t row, std::int64_t head, const DeltaScratch& s, float* state) {
    const std::int64_t dk = job.key_dim;
    const std::int64_t dv = job.value_dim;
    float* q = s.q;
    float* k = s.k_t;
    float* correction = s.uw;
    l2_normalise(job.q_row(row, head), dk, 1.0F / std::sqrt(static_cast<float>(dk)), q, 1);
    l2_normalise(job.k_row(row, head), dk, 1.0F, k, 1);
    scale_row(std::exp(job.log_decay(row, head)), state, dk * dv);
    std::fill_n(correction, dv, 0.0F);
    add_matmul(1, dv, {dk, k, dk, state, dv, correction, dv});
    const float beta = job.beta(row, head);
    const float* v = job.v_row(row, head);
    for (std::int64_t j = 0; j < dv; ++j) correction[j] = beta * (v[j] - correction[j]);
    add_matmul(dk, dv, {1, k, 1, correction, dv, state, dv});
    float* out = job.out_row(row, head);
    std::fill_n(out, dv, 0.0F);
    add_matmul(1, dv, {dk, q, dk, state, dv, out, dv});
}

void delta_recurrence(const DeltaJob& job, std::int64_t document, std::int64_t head, float* memory) {
    DeltaScratch scratch;
    DeltaScratch::carve(memory, job.key_dim, job.value_dim, &scratch);
    const std::int64_t size = job.key_dim * job.value_dim;
    float* state = job.state != nullptr ? job.state + head * size : scratch.state;
    if (job.state == nullptr) std::fill_n(state, size, 0.0F);
    for (std::int64_t row = job.document_begin[document]; row < job.document_begin[document + 1]; ++row) {
        delta_row(job, row, head, scratch, state);
        if (job.states_after != nullptr) std::copy_n(state, size, job.states_after + (row * job.value_heads + head) * size);
    }
}

}  // namespace dflash::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dflash::cpu {

HWY_EXPORT(convolve_columns);
HWY_EXPORT(delta_document);
HWY_EXPORT(delta_recurrence);

namespace {

float* data_or_null(const Tensor& tensor) { return tensor.defined() ? tensor.f32() : nullptr; }

DeltaJob make_job(const DeltaRuleParams& p) {
    const std::int32_t* borders = p.document_begin.i32();
    const std::int64_t documents = p.document_begin.elements() - 1;
    DFLASH_CHECK(
        documents >= 0 && borders[0] == 0 && borders[documents] == p.qkv.rows() && std::is_sorted(borders, borders + documents + 1),
        "delta_rule: document borders do not rise from 0 to {} rows", p.qkv.rows());
    return {p.qkv.f32(),
            p.b.f32(),
            p.a.f32(),
            p.a_log.f32(),
            p.dt_bias.f32(),
            borders,
            data_or_null(p.state),
            data_or_null(p.states_after),
            p.out.f32(),
            documents,
            p.key_heads,
            p.value_heads,
            p.key_dim,
            p.value_dim};
}

// Work(document, head, scratch) over all documents and heads.
template <typename Work>
void for_each_head(const Context& context, const DeltaRuleParams& p, const DeltaJob& job, Work work) {
    float* scratch = static_cast<float*>(context.workspace(cpu::delta_rule_workspace_bytes(p)));
    const std::int64_t floats = DeltaScratch::floats(job.key_dim, job.value_dim);
    const bool small = p.qkv.rows() * job.value_heads * job.key_dim * job.value_dim <= kSerialElements;
#pragma omp parallel for collapse(2) schedule(static) if (!small)
    for (std::int64_t document = 0; document < job.documents; ++document) {
        for (std::int64_t head = 0; head < job.value_heads; ++head) work(document, head, scratch + omp_get_thread_num() * floats);
    }
}

}  // namespace

void causal_conv_silu_forward(const Context&, const CausalConvParams& p) {
    const std::int64_t documents = p.document_begin.elements() - 1;
    const std::int64_t channels = p.x.shape[1];
    const ConvJob job{p.x.f32(), p.weight.f32(), data_or_null(p.history), p.document_begin.i32(), p.y.f32(),
                      documents, channels,       p.weight.shape[1]};
    DFLASH_CHECK(job.taps <= kMaxConvTaps, "causal_conv_silu: {} taps, at most {}", job.taps, kMaxConvTaps);
    DFLASH_CHECK(documents >= 0 && job.document_begin[0] == 0 && job.document_begin[documents] == p.x.shape[0],
                 "causal_conv_silu: document borders do not cover {} rows", p.x.shape[0]);
    const bool small = p.x.elements() <= kSerialElements;
#pragma omp parallel for schedule(static) if (!small)
    for (std::int64_t channel = 0; channel < channels; channel += kConvColumns) {
        HWY_DYNAMIC_DISPATCH(convolve_columns)(job, channel, std::min(kConvColumns, channels - channel));
    }
}

void conv_history_append(const Context&, const Tensor& x, const Tensor& history) {
    const std::int64_t channels = history.row_elements();
    const std::int64_t kept = std::max<std::int64_t>(0, history.rows() - x.rows());
    const std::int64_t added = history.rows() - kept;
    const auto bytes = [&](std::int64_t rows) { return static_cast<std::size_t>(rows * channels) * sizeof(float); };
    std::memmove(history.f32(), history.f32() + added * channels, bytes(kept));
    std::memcpy(history.f32() + kept * channels, x.f32() + (x.rows() - added) * channels, bytes(added));
}

void delta_rule_chunk_forward(const Context& context, const DeltaRuleParams& p) {
    const DeltaJob job = make_job(p);
    for_each_head(context, p, job, [&](std::int64_t document, std::int64_t head, float* scratch) {
        HWY_DYNAMIC_DISPATCH(delta_document)(job, document, head, scratch);
    });
}

void delta_rule_recurrent_forward(const Context& context, const DeltaRuleParams& p) {
    const DeltaJob job = make_job(p);
    for_each_head(context, p, job, [&](std::int64_t document, std::int64_t head, float* scratch) {
        HWY_DYNAMIC_DISPATCH(delta_recurrence)(job, document, head, scratch);
    });
}

std::size_t delta_rule_workspace_bytes(const DeltaRuleParams& shapes) {
    return static_cast<std::size_t>(cpu_threads() * DeltaScratch::floats(shapes.key_dim, shapes.value_dim)) * sizeof(float);
}

}  // namespace dflash::cpu
#endif
