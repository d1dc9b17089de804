// SPDX-License-Identifier: MIT
// Attention of query rows over their own range of key rows: the oracle, and the version to read first.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace dflash::ref {

struct AttentionShape {
    std::int64_t rows, heads, kv_heads, head_dim;
};

// q, out (rows, H, D); k, v (key rows, G, D); row i sees keys [key_begin[i], key_end[i]), none gives zeros. Query head h reads kv head
// h / (H / G).
template <typename T>
void causal_attention(const AttentionShape& s, const T* q, const T* k, const T* v, const std::int32_t* key_begin,
                      const std::int32_t* key_end, T scale, T* out) {
    for (std::int64_t i = 0; i < s.rows; ++i) {
        for (std::int64_t h = 0; h < s.heads; ++h) {
            const std::int64_t group = h / (s.heads / s.kv_heads);
            const T* query = q + (i * s.heads + h) * s.head_dim;
            T* result = out + (i * s.heads + h) * s.head_dim;
            std::fill(result, result + s.head_dim, T(0));
            std::vector<T> score;
            T largest = -std::numeric_limits<T>::infinity();
            for (std::int64_t r = key_begin[i]; r < key_end[i]; ++r) {
                T sum = 0;
                for (std::int64_t d = 0; d < s.head_dim; ++d) sum += query[d] * k[(r * s.kv_heads + group) * s.head_dim + d];
                score.push_back(sum * scale);
                largest = std::max(largest, score.back());
            }
            T total = 0;
            for (T& value : score) total += value = std::exp(value - largest);
            for (std::size_t j = 0; j < score.size(); ++j) {
                const T* value = v + ((key_begin[i] + static_cast<std::int64_t>(j)) * s.kv_heads + group) * s.head_dim;
                for (std::int64_t d = 0; d < s.head_dim; ++d) result[d] += score[j] / total * value[d];
            }
        }
    }
}

}  // namespace dflash::ref
