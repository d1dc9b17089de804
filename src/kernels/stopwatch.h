// SPDX-License-Identifier: MIT
// Times stretches of work where it runs: with the clock on the CPU, with events on a CUDA stream, which nothing waits for until they are read.
// And a probe that ops name themselves to, so that one op's share of a step can be told from outside.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "kernels/context.h"

namespace dflash {

class Stopwatch {
public:
    explicit Stopwatch(const Context& context) : context_(context) {}
    ~Stopwatch();
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;

    void mark();
    std::size_t marks() const { return count_; }
    // Milliseconds between neighbouring marks (marks() - 1 of them); waits for the last one.
    std::vector<double> intervals() const;
    // Forgets the marks; events are used again.
    void clear() { count_ = 0; }

private:
    const Context& context_;
    std::size_t count_ = 0;
    std::vector<void*> events_;
    std::vector<std::chrono::steady_clock::time_point> times_;
};

// Marks the begin and the end of every op that calls itself by one name, while it is bound to the context.
class OpProbe {
public:
    OpProbe(const Context& context, const char* op) : op_(op), watch_(context) {}
    const char* op() const { return op_; }
    // Two marks a call: of its intervals every other one is a call's time.
    Stopwatch& watch() { return watch_; }

private:
    const char* op_;
    Stopwatch watch_;
};

// In an op, around its launches.
class ProbedOp {
public:
    ProbedOp(const Context& context, const char* op);
    ~ProbedOp();
    ProbedOp(const ProbedOp&) = delete;
    ProbedOp& operator=(const ProbedOp&) = delete;

private:
    OpProbe* probe_;
};

}  // namespace dflash
