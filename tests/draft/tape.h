// SPDX-License-Identifier: MIT
// A number that records how it came about: reverse-mode derivatives of any scalar program, independent of the hand-written backward
// passes it checks. On request values, and derivatives on their way back, are rounded to bf16 where the program stores them: what plain bf16
// arithmetic with wide sums makes of the same program, the yardstick for kernels that work in bf16.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "base/bf16.h"

namespace dflash::testing {

class Tape {
public:
    struct Node {
        std::ptrdiff_t parent[2];
        double slope[2];
        bool rounds = false;  // the derivative that arrives here
    };
    static Tape& current() {
        static thread_local Tape tape;
        return tape;
    }
    std::ptrdiff_t add(std::ptrdiff_t a, double da, std::ptrdiff_t b = -1, double db = 0) {
        nodes_.push_back({{a, b}, {da, db}});
        return static_cast<std::ptrdiff_t>(nodes_.size()) - 1;
    }
    std::ptrdiff_t add_rounding(std::ptrdiff_t a) {
        nodes_.push_back({{a, -1}, {1, 0}, true});
        return static_cast<std::ptrdiff_t>(nodes_.size()) - 1;
    }
    void clear(bool imitate_bf16 = false) {
        nodes_.clear();
        imitates_bf16_ = imitate_bf16;
    }
    bool imitates_bf16() const { return imitates_bf16_; }
    // d result / d node, for every node.
    std::vector<double> derivatives(std::ptrdiff_t result) const {
        std::vector<double> d(nodes_.size(), 0.0);
        if (result < 0) return d;
        d[static_cast<std::size_t>(result)] = 1;
        for (std::size_t i = nodes_.size(); i-- > 0;) {
            if (nodes_[i].rounds) d[i] = to_bf16(d[i]);
            for (int side = 0; side < 2; ++side) {
                if (nodes_[i].parent[side] >= 0) d[static_cast<std::size_t>(nodes_[i].parent[side])] += d[i] * nodes_[i].slope[side];
            }
        }
        return d;
    }

    static double to_bf16(double value) { return static_cast<double>(bf16_to_float(float_to_bf16(static_cast<float>(value)))); }

private:
    std::vector<Node> nodes_;
    bool imitates_bf16_ = false;
};

struct Recorded {
    double value = 0;
    std::ptrdiff_t node = -1;  // -1: a constant
    Recorded() = default;
    explicit Recorded(double constant) : value(constant) {}
    Recorded(double v, std::ptrdiff_t n) : value(v), node(n) {}
    static Recorded variable(double v) { return {v, Tape::current().add(-1, 0)}; }
};
inline double value_of(const Recorded& x) { return x.value; }
inline void store(Recorded& x) {
    if (!Tape::current().imitates_bf16()) return;
    x.value = Tape::to_bf16(x.value);
    if (x.node >= 0) x.node = Tape::current().add_rounding(x.node);
}

inline Recorded binary(double value, const Recorded& a, double da, const Recorded& b, double db) {
    if (a.node < 0 && b.node < 0) return Recorded(value);
    return {value, Tape::current().add(a.node, da, b.node, db)};
}
inline Recorded operator+(const Recorded& a, const Recorded& b) { return binary(a.value + b.value, a, 1, b, 1); }
inline Recorded operator-(const Recorded& a, const Recorded& b) { return binary(a.value - b.value, a, 1, b, -1); }
inline Recorded operator*(const Recorded& a, const Recorded& b) { return binary(a.value * b.value, a, b.value, b, a.value); }
inline Recorded operator/(const Recorded& a, const Recorded& b) {
    return binary(a.value / b.value, a, 1 / b.value, b, -a.value / (b.value * b.value));
}
inline Recorded operator*(double a, const Recorded& b) { return Recorded(a) * b; }
inline Recorded operator*(const Recorded& a, double b) { return a * Recorded(b); }
inline Recorded unary(double value, const Recorded& a, double da) { return binary(value, a, da, Recorded(0.0), 0); }
inline Recorded exp(const Recorded& a) { return unary(std::exp(a.value), a, std::exp(a.value)); }
inline Recorded log(const Recorded& a) { return unary(std::log(a.value), a, 1 / a.value); }
inline Recorded sqrt(const Recorded& a) { return unary(std::sqrt(a.value), a, 0.5 / std::sqrt(a.value)); }

}  // namespace dflash::testing
