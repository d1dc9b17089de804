// SPDX-License-Identifier: MIT
// Matrix products of the CPU: oneDNN matmul primitives in f32, scratch from the context's workspace.
// Compiling a primitive takes about half a millisecond and maps memory, hence the pieces below: any number of rows is made of at
// most a handful of them, and prepare() compiles every piece that a shape can need.
// Without AVX-512 oneDNN takes another path, whose sums depend on the number of rows and which allocates in every call: there the
// products are our own (vector_matmul.h), slower but with the same laws.
#include <algorithm>
#include <bit>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "kernels/backends.h"
#include "kernels/cpu/vector_matmul.h"

namespace dflash::cpu {

namespace {

// Rows go into pieces of a power of two, this many at most: enough for the full rate, few enough primitives (each takes some 50 KB).
constexpr std::int64_t kMaxPieceRows = 2048;
// oneDNN 2.6 falls to half its rate and less on a wide row-major right-hand side, unless its width is a power of two (which it copies
// by itself). Wider ones are brought into the library's blocked layout first.
constexpr std::int64_t kMaxPlainColumns = 1024;
constexpr std::size_t kScratchAlignment = 64;

std::int64_t next_piece(std::int64_t rows) {
    return std::min(static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(rows))), kMaxPieceRows);
}

// C (m, n) = or += A (m, k) B (k, n), all contiguous. C is row-major; A and B are row-major, or column-major where marked transposed.
struct Product {
    std::int64_t m = 0, n = 0, k = 0;
    bool a_transposed = false, b_transposed = false;
    bool accumulate = false;
    bool operator==(const Product&) const = default;

    bool packs_b() const { return !b_transposed && n > kMaxPlainColumns && !std::has_single_bit(static_cast<std::uint64_t>(n)); }
};

struct ProductHash {
    std::size_t operator()(const Product& p) const {
        std::uint64_t h = static_cast<std::uint64_t>(p.a_transposed * 4 + p.b_transposed * 2 + p.accumulate);
        for (const std::int64_t key : {p.m, p.n, p.k}) {
            h = (h ^ static_cast<std::uint64_t>(key)) * 0x9E3779B97F4A7C15ULL;
            h ^= h >> 32;
        }
        return h;
    }
};

Product forward_product(std::int64_t rows, std::int64_t in, std::int64_t out, bool accumulate) {
    return {rows, out, in, false, true, accumulate};
}
Product backward_input_product(std::int64_t rows, std::int64_t in, std::int64_t out, bool accumulate) {
    return {rows, in, out, false, false, accumulate};
}
Product backward_weight_product(std::int64_t rows, std::int64_t in, std::int64_t out, bool accumulate) {
    return {out, in, rows, true, false, accumulate};
}

dnnl::memory::desc matrix(std::int64_t rows, std::int64_t columns, bool transposed) {
    return {{rows, columns}, dnnl::memory::data_type::f32, transposed ? dnnl::memory::format_tag::ba : dnnl::memory::format_tag::ab};
}
dnnl::memory::desc right_side(const Product& p) {
    if (!p.packs_b()) return matrix(p.k, p.n, p.b_transposed);
    return {{p.k, p.n}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::BA16a64b};
}

const dnnl::engine& cpu_engine() {
    static const dnnl::engine kEngine(dnnl::engine::kind::cpu, 0);
    return kEngine;
}

dnnl::matmul::primitive_desc describe(const Product& p) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (p.accumulate) {
        dnnl::post_ops sum;
        sum.append_sum(1.0F);
        attributes.set_post_ops(sum);
    }
    const dnnl::matmul::desc operation(matrix(p.m, p.k, p.a_transposed), right_side(p), matrix(p.m, p.n, false));
    return {operation, attributes, cpu_engine()};
}

// The workspace holds the packed right-hand side, if any, and the primitive's scratch after it.
std::size_t packed_bytes(const Product& p) {
    if (!p.packs_b()) return 0;
    return (right_side(p).get_size() + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

// Every product that a shape can ask for.
template <typename Visit>
void for_each_product(const LinearShape& shape, Visit visit) {
    for (std::int64_t rows = 1; rows <= std::min(shape.max_rows, kMaxPieceRows); rows *= 2) {
        for (const bool accumulate : {false, true}) {
            if (shape.forward) visit(forward_product(rows, shape.in, shape.out, accumulate));
            if (shape.backward_input) visit(backward_input_product(rows, shape.in, shape.out, accumulate));
            if (shape.backward_weight) visit(backward_weight_product(rows, shape.in, shape.out, accumulate));
        }
    }
}

class OneDnnLibrary final : public MatmulLibrary {
public:
    void forward(const Context& context, const LinearForwardParams& p) override {
        const std::int64_t in = p.x.row_elements();
        const std::int64_t out = p.y.row_elements();
        for (std::int64_t begin = 0; begin < p.x.rows();) {
            const std::int64_t rows = next_piece(p.x.rows() - begin);
            multiply(context, forward_product(rows, in, out, p.write == Write::kAccumulate), p.x.f32() + begin * in, p.weight.f32(),
                     p.y.f32() + begin * out);
            begin += rows;
        }
    }

    void backward_input(const Context& context, const LinearBackwardInputParams& p) override {
        const std::int64_t in = p.d_x.row_elements();
        const std::int64_t out = p.d_y.row_elements();
        for (std::int64_t begin = 0; begin < p.d_y.rows();) {
            const std::int64_t rows = next_piece(p.d_y.rows() - begin);
            multiply(context, backward_input_product(rows, in, out, p.write == Write::kAccumulate), p.d_y.f32() + begin * out,
                     p.weight.f32(), p.d_x.f32() + begin * in, begin > 0);
            begin += rows;
        }
    }

    // The rows are summed over here: pieces after the first add to its result.
    void backward_weight(const Context& context, const LinearBackwardWeightParams& p) override {
        const std::int64_t in = p.d_weight.row_elements();
        const std::int64_t out = p.d_weight.rows();
        bool accumulate = p.write == Write::kAccumulate;
        if (p.x.rows() == 0 && !accumulate) std::memset(p.d_weight.data, 0, p.d_weight.bytes());
        for (std::int64_t begin = 0; begin < p.x.rows();) {
            const std::int64_t rows = next_piece(p.x.rows() - begin);
            multiply(context, backward_weight_product(rows, in, out, accumulate), p.d_y.f32() + begin * out, p.x.f32() + begin * in,
                     p.d_weight.f32());
            accumulate = true;
            begin += rows;
        }
    }

    void prepare(const std::vector<LinearShape>& shapes) override {
        for (const LinearShape& shape : shapes) {
            for_each_product(shape, [this](const Product& product) {
                compiled(product);
                if (product.packs_b()) packing(product);
            });
        }
    }

private:
    struct Compiled {
        dnnl::matmul primitive;
        dnnl::memory::desc a, b, c, scratch;
    };

    const Compiled& compiled(const Product& product) {
        const auto found = products_.find(product);
        if (found != products_.end()) return found->second;
        const dnnl::matmul::primitive_desc desc = describe(product);
        return products_
            .emplace(product, Compiled{dnnl::matmul(desc), desc.src_desc(), desc.weights_desc(), desc.dst_desc(), desc.scratchpad_desc()})
            .first->second;
    }

    const dnnl::reorder& packing(const Product& product) {
        const std::uint64_t key = static_cast<std::uint64_t>(product.k) << 32 | static_cast<std::uint64_t>(product.n);
        const auto found = packings_.find(key);
        if (found != packings_.end()) return found->second;
        const dnnl::engine& engine = cpu_engine();
        const dnnl::reorder::primitive_desc desc(engine, matrix(product.k, product.n, false), engine, right_side(product));
        return packings_.emplace(key, dnnl::reorder(desc)).first->second;
    }

    // `b_is_packed`: the product before this one had the same right-hand side, and its packed form still lies in the workspace.
    void multiply(const Context& context, const Product& product, float* a, float* b, float* c, bool b_is_packed = false) {
        const dnnl::engine& engine = cpu_engine();
        const Compiled& one = compiled(product);
        const std::size_t packed = packed_bytes(product);
        char* workspace = static_cast<char*>(context.workspace(packed + one.scratch.get_size()));
        dnnl::memory right(one.b, engine, product.packs_b() ? static_cast<void*>(workspace) : b);
        if (product.packs_b() && !b_is_packed) {
            dnnl::memory plain(matrix(product.k, product.n, false), engine, b);
            packing(product).execute(stream_, plain, right);
        }
        one.primitive.execute(stream_, {{DNNL_ARG_SRC, dnnl::memory(one.a, engine, a)},
                                        {DNNL_ARG_WEIGHTS, right},
                                        {DNNL_ARG_DST, dnnl::memory(one.c, engine, c)},
                                        {DNNL_ARG_SCRATCHPAD, dnnl::memory(one.scratch, engine, workspace + packed)}});
    }

    dnnl::stream stream_{cpu_engine()};
    std::unordered_map<Product, Compiled, ProductHash> products_;
    std::unordered_map<std::uint64_t, dnnl::reorder> packings_;  // by k and n
};

class VectorLibrary final : public MatmulLibrary {
public:
    void forward(const Context&, const LinearForwardParams& p) override {
        const std::int64_t in = p.x.row_elements(), out = p.y.row_elements();
        vector_matmul(p.x.rows(), out, in, {p.x.f32(), in, 1}, {p.weight.f32(), 1, in}, p.y.f32(), p.write == Write::kAccumulate);
    }
    void backward_input(const Context&, const LinearBackwardInputParams& p) override {
        const std::int64_t in = p.d_x.row_elements(), out = p.d_y.row_elements();
        vector_matmul(p.d_y.rows(), in, out, {p.d_y.f32(), out, 1}, {p.weight.f32(), in, 1}, p.d_x.f32(), p.write == Write::kAccumulate);
    }
    void backward_weight(const Context&, const LinearBackwardWeightParams& p) override {
        const std::int64_t in = p.d_weight.row_elements(), out = p.d_weight.rows();
        vector_matmul(out, in, p.x.rows(), {p.d_y.f32(), 1, out}, {p.x.f32(), in, 1}, p.d_weight.f32(), p.write == Write::kAccumulate);
    }
    void prepare(const std::vector<LinearShape>&) override {}
};

bool library_keeps_rows_apart() {
    constexpr auto kAvx512 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
    return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kAvx512) == kAvx512;
}

}  // namespace

std::unique_ptr<MatmulLibrary> make_matmul_library(Device) {
    if (library_keeps_rows_apart()) return std::make_unique<OneDnnLibrary>();
    return std::make_unique<VectorLibrary>();
}

std::size_t linear_workspace_bytes(const std::vector<LinearShape>& shapes) {
    std::size_t bytes = 0;
    if (!library_keeps_rows_apart()) return bytes;
    for (const LinearShape& shape : shapes) {
        for_each_product(shape, [&bytes](const Product& product) {
            bytes = std::max(bytes, packed_bytes(product) + describe(product).scratchpad_desc().get_size());
        });
    }
    return bytes;
}

}  // namespace dflash::cpu
