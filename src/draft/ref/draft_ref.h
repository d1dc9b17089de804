// SPDX-License-Identifier: MIT
// The drafter in scalar loops, the version to read first and the oracle of the tests: forward and loss for any number type T (float, double,
// or a type that records derivatives). Weights are vectors in the shapes of draft_weights.h; everything frozen is double. What an op would write
// to memory passes through store(), where a type may imitate the rounding of a narrower one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "draft/anchors.h"
#include "draft/draft_spec.h"

namespace dflash::ref {

template <typename T>
struct DraftLayerRef {
    std::vector<T> input_norm, post_norm, q_proj, k_proj, v_proj, o_proj, q_norm, k_norm, gate_proj, up_proj, down_proj;
};
template <typename T>
struct DraftWeightsRef {
    std::vector<T> fc, hidden_norm, norm;
    std::vector<DraftLayerRef<T>> layers;
};
struct DraftFrozenRef {
    std::vector<double> embedding, head;           // (V, C)
    std::vector<double> taps;                      // (S, K*C)
    std::vector<double> final_state, target_head;  // (S, C), (V, C): kl only
};

template <typename T>
void store(T&) {}

// y (rows, out) = x (rows, in) W^T
template <typename A, typename B>
auto product(const std::vector<A>& x, const std::vector<B>& weight, std::int64_t in) {
    using T = decltype(x[0] * weight[0]);
    const auto width = static_cast<std::size_t>(in);
    const std::size_t rows = x.size() / width;
    const std::size_t out = weight.size() / width;
    std::vector<T> y;
    y.reserve(rows * out);
    for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t o = 0; o < out; ++o) {
            T sum = x[r * width] * weight[o * width];
            for (std::size_t i = 1; i < width; ++i) sum = sum + x[r * width + i] * weight[o * width + i];
            store(sum);
            y.push_back(sum);
        }
    }
    return y;
}

// Root-mean-square norm of consecutive runs of weight.size() elements.
template <typename T>
std::vector<T> rms_norm(const std::vector<T>& x, const std::vector<T>& weight, double eps) {
    using std::sqrt;
    const std::size_t width = weight.size();
    std::vector<T> y(x.size());
    for (std::size_t begin = 0; begin < x.size(); begin += width) {
        T sum = x[begin] * x[begin];
        for (std::size_t i = 1; i < width; ++i) sum = sum + x[begin + i] * x[begin + i];
        const T scale = T(1.0) / sqrt(sum / T(static_cast<double>(width)) + T(eps));
        for (std::size_t i = 0; i < width; ++i) y[begin + i] = weight[i] * x[begin + i] * scale;
    }
    for (T& value : y) store(value);
    return y;
}

// Half-split rotation of every head of D; `positions` by row of `heads` heads.
template <typename T>
void rotate(std::vector<T>& x, const std::vector<std::int32_t>& positions, std::int64_t heads, std::int64_t head_dim, double theta) {
    const auto half = static_cast<std::size_t>(head_dim / 2);
    std::size_t at = 0;
    for (std::size_t row = 0; at < x.size(); ++row) {
        for (std::int64_t h = 0; h < heads; ++h, at += 2 * half) {
            for (std::size_t i = 0; i < half; ++i) {
                const double angle = positions[row] * std::pow(theta, -static_cast<double>(i) / static_cast<double>(half));
                const T a = x[at + i];
                const T b = x[at + half + i];
                x[at + i] = a * T(std::cos(angle)) - b * T(std::sin(angle));
                x[at + half + i] = b * T(std::cos(angle)) + a * T(std::sin(angle));
            }
        }
    }
}

// One draft layer's attention; rows of q, k_block, v_block are slots, of k_context, v_context the micro-batch's tokens.
template <typename T>
std::vector<T> block_attention(const DraftSpec& spec, const DraftLayerSpec& layer, const AnchorSet& anchors, const std::vector<T>& q,
                               const std::vector<T>& k_context, const std::vector<T>& v_context, const std::vector<T>& k_block,
                               const std::vector<T>& v_block) {
    using std::exp;
    const auto width = static_cast<std::size_t>(spec.head_dim);
    const auto heads = static_cast<std::size_t>(spec.heads);
    const auto kv_heads = static_cast<std::size_t>(spec.kv_heads);
    std::vector<T> out;
    struct Key {
        const T* k;
        const T* v;
    };
    for (std::int64_t row = 0; row < anchors.live_rows(); ++row) {
        const auto block = static_cast<std::size_t>(row / spec.block_size);
        const std::int64_t slot = row % spec.block_size;
        const std::int64_t anchor = anchors.anchor_row[block];
        std::int64_t first = anchors.begin_row[block];
        if (layer.window > 0) first = std::max(first, anchor + slot - (layer.window - 1));
        const std::int64_t last_slot = layer.causal_block ? slot : spec.block_size - 1;
        for (std::size_t h = 0; h < heads; ++h) {
            const std::size_t g = h / (heads / kv_heads);
            std::vector<Key> keys;
            for (std::int64_t r = first; r < anchor; ++r) {
                const std::size_t at = (static_cast<std::size_t>(r) * kv_heads + g) * width;
                keys.push_back({&k_context[at], &v_context[at]});
            }
            for (std::int64_t j = 0; j <= last_slot; ++j) {
                const std::size_t at = (static_cast<std::size_t>(row - slot + j) * kv_heads + g) * width;
                keys.push_back({&k_block[at], &v_block[at]});
            }
            const T* query = &q[(static_cast<std::size_t>(row) * heads + h) * width];
            std::vector<T> score;
            for (const Key& key : keys) {
                T sum = query[0] * key.k[0];
                for (std::size_t i = 1; i < width; ++i) sum = sum + query[i] * key.k[i];
                score.push_back(exp(sum * T(1.0 / std::sqrt(static_cast<double>(width)))));
            }
            T total = score[0];
            for (std::size_t j = 1; j < score.size(); ++j) total = total + score[j];
            for (std::size_t i = 0; i < width; ++i) {
                T sum = score[0] * keys[0].v[i];
                for (std::size_t j = 1; j < keys.size(); ++j) sum = sum + score[j] * keys[j].v[i];
                sum = sum / total;
                store(sum);
                out.push_back(sum);
            }
        }
    }
    return out;
}

// Hidden states after the last norm, (live rows, C).
template <typename T>
std::vector<T> draft_hidden(const DraftSpec& spec, const DraftWeightsRef<T>& weights, const DraftFrozenRef& frozen,
                            const std::vector<std::int32_t>& context_positions, const AnchorSet& anchors) {
    using std::exp;
    const std::int64_t c = spec.hidden;
    const auto width = static_cast<std::size_t>(c);
    const auto add = [](const std::vector<T>& a, const std::vector<T>& b) {
        std::vector<T> sum(a.size());
        for (std::size_t i = 0; i < a.size(); ++i) {
            sum[i] = a[i] + b[i];
            store(sum[i]);
        }
        return sum;
    };
    const auto taps = static_cast<std::int64_t>(spec.taps.size());
    const std::vector<T> ctx = rms_norm(product(frozen.taps, weights.fc, taps * c), weights.hidden_norm, spec.rms_norm_eps);
    std::vector<T> x;
    for (std::int64_t row = 0; row < anchors.live_rows(); ++row) {
        const auto id = static_cast<std::size_t>(anchors.block_ids[static_cast<std::size_t>(row)]);
        for (std::size_t i = 0; i < width; ++i) x.push_back(T(frozen.embedding[id * width + i]));
    }
    for (std::size_t l = 0; l < spec.layers.size(); ++l) {
        const DraftLayerRef<T>& w = weights.layers[l];
        const auto rotated = [&](std::vector<T> raw, const std::vector<T>& norm, const std::vector<std::int32_t>& positions,
                                 std::int64_t heads) {
            raw = rms_norm(raw, norm, spec.rms_norm_eps);
            rotate(raw, positions, heads, spec.head_dim, spec.rope_theta);
            return raw;
        };
        const std::vector<T> h = rms_norm(x, w.input_norm, spec.rms_norm_eps);
        const auto attention =
            block_attention(spec, spec.layers[l], anchors, rotated(product(h, w.q_proj, c), w.q_norm, anchors.block_position, spec.heads),
                            rotated(product(ctx, w.k_proj, c), w.k_norm, context_positions, spec.kv_heads), product(ctx, w.v_proj, c),
                            rotated(product(h, w.k_proj, c), w.k_norm, anchors.block_position, spec.kv_heads), product(h, w.v_proj, c));
        x = add(x, product(attention, w.o_proj, spec.heads * spec.head_dim));
        const std::vector<T> y = rms_norm(x, w.post_norm, spec.rms_norm_eps);
        std::vector<T> gate = product(y, w.gate_proj, c);
        const std::vector<T> up = product(y, w.up_proj, c);
        for (std::size_t i = 0; i < gate.size(); ++i) {
            gate[i] = gate[i] / (T(1.0) + exp(T(0.0) - gate[i])) * up[i];
            store(gate[i]);
        }
        x = add(x, product(gate, w.down_proj, spec.intermediate));
    }
    return rms_norm(x, weights.norm, spec.rms_norm_eps);
}

template <typename T>
std::vector<T> log_softmax(const std::vector<T>& z) {
    using std::exp;
    using std::log;
    T total = exp(z[0]);
    for (std::size_t i = 1; i < z.size(); ++i) total = total + exp(z[i]);
    const T shift = log(total);
    std::vector<T> y(z.size());
    for (std::size_t i = 0; i < z.size(); ++i) y[i] = z[i] - shift;
    return y;
}

inline double value_of(double x) { return x; }

// The factors of D-PACE for consecutive labelled slots of one block with probabilities q.
inline std::vector<double> dpace_factors(const std::vector<double>& q, double alpha) {
    std::vector<double> factors(q.size(), 0.0);
    for (std::size_t k = 0; k < q.size(); ++k) {
        double product = 1;
        for (std::size_t i = 0; i <= k; ++i) product *= (1 - alpha) * q[i] + alpha;
        for (std::size_t i = 0; i <= k; ++i) factors[i] += product;
    }
    return factors;
}

// Sum of weight x loss over the labelled slots; `dpace_alpha` < 0: the anchors' weights alone.
template <typename T>
T draft_loss(const DraftSpec& spec, const DraftFrozenRef& frozen, const AnchorSet& anchors, const std::vector<T>& hidden, bool kl,
             double dpace_alpha) {
    const auto width = static_cast<std::size_t>(spec.hidden);
    T total(0.0);
    for (std::int64_t block = 0; block < anchors.num_live; ++block) {
        std::vector<T> losses;
        std::vector<double> probabilities;
        std::vector<double> weights;
        for (std::int64_t k = 0; k < spec.block_size; ++k) {
            const auto row = static_cast<std::size_t>(block * spec.block_size + k);
            if (anchors.labels[row] < 0) continue;
            const std::vector<T> state(hidden.begin() + static_cast<std::ptrdiff_t>(row * width),
                                       hidden.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
            const std::vector<T> log_p = log_softmax(product(state, frozen.head, spec.hidden));
            const auto label = static_cast<std::size_t>(anchors.labels[row]);
            probabilities.push_back(std::exp(value_of(log_p[label])));
            weights.push_back(static_cast<double>(anchors.weight[row]));
            if (!kl) {
                losses.push_back(T(0.0) - log_p[label]);
                continue;
            }
            const auto teacher_row = static_cast<std::size_t>(anchors.teacher_row[row]);
            const std::vector<double> teacher_state(frozen.final_state.begin() + static_cast<std::ptrdiff_t>(teacher_row * width),
                                                    frozen.final_state.begin() + static_cast<std::ptrdiff_t>((teacher_row + 1) * width));
            const std::vector<double> log_t = log_softmax(product(teacher_state, frozen.target_head, spec.hidden));
            T loss(0.0);
            for (std::size_t v = 0; v < log_t.size(); ++v) loss = loss + T(std::exp(log_t[v])) * (T(log_t[v]) - log_p[v]);
            losses.push_back(loss);
        }
        const std::vector<double> factors =
            dpace_alpha < 0 ? std::vector<double>(losses.size(), 1.0) : dpace_factors(probabilities, dpace_alpha);
        for (std::size_t i = 0; i < losses.size(); ++i) total = total + T(weights[i] * factors[i]) * losses[i];
    }
    return total;
}

}  // namespace dflash::ref
