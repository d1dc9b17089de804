// SPDX-License-Identifier: MIT
// Matrix products of CUDA: cuBLASLt, bf16 operands, fp32 accumulation, bf16 or f32 results.
// An algorithm is looked up once per product and class of row counts (the next power of two) and serves every row count of the class: a row-major
// matrix of `rows` rows is to cuBLASLt a column-major one of `rows` columns, so that rows change neither a leading dimension nor an
// alignment. prepare() makes all look-ups of a run, and the loop makes none. The choice depends on the product alone, not on what was
// prepared or bound, hence the same rows give the same bits. Sums that are cut in pieces over k are added in fp32.
#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "base/error.h"
#include "kernels/backends.h"
#include "kernels/cuda/workspace.h"
#include "tensor/cuda_runtime.h"
#include "tensor/working_dtype.h"

namespace dflash::cuda {

namespace {

constexpr std::size_t kMaxAlignment = 16;  // bytes; the widest that a load or the copy engine needs

enum class Kind : std::uint8_t { kForward, kBackwardInput, kBackwardWeight };

struct Product {
    Kind kind = Kind::kForward;
    std::int64_t rows = 0, in = 0, out = 0;
    DType result = DType::kBF16;
    bool operator==(const Product&) const = default;

    Product row_class() const {
        Product whole = *this;
        whole.rows = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
        return whole;
    }
};

struct ProductHash {
    std::size_t operator()(const Product& p) const {
        std::uint64_t h = static_cast<std::uint64_t>(p.kind) * 16 + static_cast<std::uint64_t>(p.result);
        for (const std::int64_t key : {p.rows, p.in, p.out}) {
            h = (h ^ static_cast<std::uint64_t>(key)) * 0x9E3779B97F4A7C15ULL;
            h ^= h >> 32;
        }
        return h;
    }
};

void check(cublasStatus_t status, const Product& p) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    constexpr const char* kNames[] = {"forward", "backward input", "backward weight"};
    throw_failed("cuBLASLt: {} product of {} rows, in {}, out {} ({}): {}: see `dflash doctor`, or use --device cpu",
                 kNames[static_cast<int>(p.kind)], p.rows, p.in, p.out, dtype_name(p.result), cublasLtGetStatusString(status));
}

// A row-major matrix, and whether the product takes it transposed in cuBLASLt's column-major view of the same memory.
struct Operand {
    std::int64_t rows, columns;
    cublasOperation_t operation = CUBLAS_OP_N;
    DType dtype = DType::kBF16;

    // What any of its rows can be relied on to be aligned to, when the matrix is.
    std::uint32_t alignment() const {
        const std::size_t row_bytes = static_cast<std::size_t>(columns) * dtype_bytes(dtype);
        return static_cast<std::uint32_t>(std::min(kMaxAlignment, row_bytes & (~row_bytes + 1)));
    }
};

// D = op(A) op(B): y^T = W x^T; d_x^T = W^T d_y^T; d_w^T = x^T d_y.
struct Operands {
    Operand a, b, d;
};
Operands operands(const Product& p) {
    switch (p.kind) {
        case Kind::kForward: return {{p.out, p.in, CUBLAS_OP_T}, {p.rows, p.in}, {p.rows, p.out, CUBLAS_OP_N, p.result}};
        case Kind::kBackwardInput: return {{p.out, p.in}, {p.rows, p.out}, {p.rows, p.in, CUBLAS_OP_N, p.result}};
        case Kind::kBackwardWeight: break;
    }
    return {{p.rows, p.in}, {p.rows, p.out, CUBLAS_OP_T}, {p.out, p.in, CUBLAS_OP_N, p.result}};
}

// cuBLASLt's description of a product; lives on the stack.
class Description {
public:
    explicit Description(const Product& p) : operands_(operands(p)) {
        check(cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), p);
        set(CUBLASLT_MATMUL_DESC_TRANSA, operands_.a.operation, p);
        set(CUBLASLT_MATMUL_DESC_TRANSB, operands_.b.operation, p);
        layout(a_, operands_.a, p);
        layout(b_, operands_.b, p);
        layout(d_, operands_.d, p);
    }
    const Operands& sides() const { return operands_; }
    cublasLtMatmulDesc_t operation() { return &operation_; }
    cublasLtMatrixLayout_t a() { return &a_; }
    cublasLtMatrixLayout_t b() { return &b_; }
    cublasLtMatrixLayout_t d() { return &d_; }

private:
    void set(cublasLtMatmulDescAttributes_t attribute, cublasOperation_t value, const Product& p) {
        check(cublasLtMatmulDescSetAttribute(&operation_, attribute, &value, sizeof value), p);
    }
    static void layout(cublasLtMatrixLayoutOpaque_t& to, const Operand& matrix, const Product& p) {
        const cudaDataType_t type = matrix.dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
        check(cublasLtMatrixLayoutInit(&to, type, static_cast<std::uint64_t>(matrix.columns), static_cast<std::uint64_t>(matrix.rows),
                                       matrix.columns),
              p);
    }

    Operands operands_;
    cublasLtMatmulDescOpaque_t operation_;
    cublasLtMatrixLayoutOpaque_t a_, b_, d_;
};

class Preference {
public:
    Preference(const Operands& sides, const Product& p) {
        check(cublasLtMatmulPreferenceInit(&preference_), p);
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMatmulWorkspaceBytes, p);
        set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE), p);
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, sides.a.alignment(), p);
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, sides.b.alignment(), p);
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, sides.d.alignment(), p);
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, sides.d.alignment(), p);
    }
    cublasLtMatmulPreference_t get() { return &preference_; }

private:
    template <typename T>
    void set(cublasLtMatmulPreferenceAttributes_t attribute, T value, const Product& p) {
        check(cublasLtMatmulPreferenceSetAttribute(&preference_, attribute, &value, sizeof value), p);
    }
    cublasLtMatmulPreferenceOpaque_t preference_;
};

void check_alignment(const void* data, const Operand& matrix, const Product& p) {
    DFLASH_CHECK(reinterpret_cast<std::uintptr_t>(data) % matrix.alignment() == 0,
                 "matrix product (in {}, out {}): an operand is not aligned to {} bytes", p.in, p.out, matrix.alignment());
}

class CublasLtLibrary final : public MatmulLibrary {
public:
    explicit CublasLtLibrary(Device device) {
        select_device(device);
        check(cublasLtCreate(&handle_), Product{});
    }
    ~CublasLtLibrary() override { cublasLtDestroy(handle_); }

    void forward(const Context& context, const LinearForwardParams& p) override {
        const Product product{Kind::kForward, p.x.rows(), p.x.row_elements(), p.y.row_elements(), p.y.dtype};
        multiply(context, product, p.weight.data, p.x.data, p.y.data, p.write);
    }

    void backward_input(const Context& context, const LinearBackwardInputParams& p) override {
        const Product product{Kind::kBackwardInput, p.d_y.rows(), p.d_x.row_elements(), p.d_y.row_elements(), p.d_x.dtype};
        multiply(context, product, p.weight.data, p.d_y.data, p.d_x.data, p.write);
    }

    void backward_weight(const Context& context, const LinearBackwardWeightParams& p) override {
        if (p.x.rows() == 0) {
            if (p.write == Write::kOverwrite) fill(context.stream(), p.d_weight.data, 0, p.d_weight.bytes());
            return;
        }
        const Product product{Kind::kBackwardWeight, p.x.rows(), p.d_weight.row_elements(), p.d_weight.rows(), p.d_weight.dtype};
        multiply(context, product, p.x.data, p.d_y.data, p.d_weight.data, p.write);
    }

    void prepare(const std::vector<LinearShape>& shapes) override {
        for (const LinearShape& shape : shapes) {
            const Product largest = Product{Kind::kForward, std::max<std::int64_t>(1, shape.max_rows), shape.in, shape.out}.row_class();
            for (std::int64_t rows = 1; rows <= largest.rows; rows *= 2) {
                for (const DType result : {DType::kBF16, DType::kF32}) {
                    if (shape.forward) algorithm({Kind::kForward, rows, shape.in, shape.out, result});
                    if (shape.backward_input) algorithm({Kind::kBackwardInput, rows, shape.in, shape.out, result});
                    if (shape.backward_weight) algorithm({Kind::kBackwardWeight, rows, shape.in, shape.out, result});
                }
            }
        }
    }

private:
    // The library's first choice for exactly this product.
    const cublasLtMatmulAlgo_t& algorithm(const Product& product) {
        const auto found = algorithms_.find(product);
        if (found != algorithms_.end()) return found->second;
        Description description(product);
        Preference preference(description.sides(), product);
        cublasLtMatmulHeuristicResult_t choice{};
        int count = 0;
        check(cublasLtMatmulAlgoGetHeuristic(handle_, description.operation(), description.a(), description.b(), description.d(),
                                             description.d(), preference.get(), 1, &choice, &count),
              product);
        check(count > 0 ? choice.state : CUBLAS_STATUS_NOT_SUPPORTED, product);
        return algorithms_.emplace(product, choice.algo).first->second;
    }

    void multiply(const Context& context, const Product& product, const void* a, const void* b, void* d, Write write) {
        Description description(product);
        check_alignment(a, description.sides().a, product);
        check_alignment(b, description.sides().b, product);
        check_alignment(d, description.sides().d, product);
        const float alpha = 1.0F;
        const float beta = write == Write::kAccumulate ? 1.0F : 0.0F;
        const auto run = [&](const cublasLtMatmulAlgo_t& choice) {
            return cublasLtMatmul(handle_, description.operation(), &alpha, a, description.a(), b, description.b(), &beta, d,
                                  description.d(), d, description.d(), &choice, context.workspace(kMatmulWorkspaceBytes),
                                  kMatmulWorkspaceBytes, static_cast<cudaStream_t>(context.stream().handle));
        };
        cublasStatus_t status = run(algorithm(product.row_class()));
        // An algorithm may turn down a smaller member of its class; then the product gets its own, from then on.
        if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) status = run(algorithm(product));
        check(status, product);
    }

    cublasLtHandle_t handle_ = nullptr;
    std::unordered_map<Product, cublasLtMatmulAlgo_t, ProductHash> algorithms_;
};

}  // namespace

std::unique_ptr<MatmulLibrary> make_matmul_library(Device device) { return std::make_unique<CublasLtLibrary>(device); }

}  // namespace dflash::cuda
