// SPDX-License-Identifier: MIT
// Work that is the same launches every time, replayed as one: on CUDA a key's work runs as it is the first time (so that everything is loaded),
// is recorded into a graph the second time, and is one launch from then on. On the CPU, and where recording is off, it always just runs.
// What is recorded must depend on its key alone: the same tensors, the same counts, no uploads, downloads or waits.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "kernels/context.h"
#include "tensor/cuda_runtime.h"

namespace dflash {

class Recordings {
public:
    explicit Recordings(bool enabled) : enabled_(enabled) {}
    ~Recordings() {
        for (const auto& [key, entry] : entries_) {
            if (entry.graph != nullptr) cuda::destroy_graph(entry.graph);
        }
    }
    Recordings(const Recordings&) = delete;
    Recordings& operator=(const Recordings&) = delete;

    // `memory` and `count` are the key: where the work begins to read, where that varies, and how many rows it has.
    template <typename Launches>
    void run(const Context& context, const void* memory, std::int64_t count, const Launches& launches) {
        if (!enabled_ || context.device().type == DeviceType::kCpu) return launches();
        Entry& entry = entries_[{memory, count}];
        if (entry.calls++ == 0) return launches();
        if (entry.graph == nullptr) entry.graph = record(context, launches);
        cuda::launch_graph(context.stream(), entry.graph);
    }

private:
    struct Entry {
        std::int64_t calls = 0;
        void* graph = nullptr;
    };

    template <typename Launches>
    static void* record(const Context& context, const Launches& launches) {
        cuda::begin_recording(context.stream());
        try {
            launches();
        } catch (...) {
            cuda::abandon_recording(context.stream());
            throw;
        }
        return cuda::end_recording(context.stream());
    }

    bool enabled_;
    std::map<std::pair<const void*, std::int64_t>, Entry> entries_;
};

}  // namespace dflash
