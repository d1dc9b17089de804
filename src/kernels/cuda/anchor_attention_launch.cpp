// SPDX-License-Identifier: MIT
#include "kernels/cuda/anchor_attention_launch.h"

#include "kernels/backends.h"
#include "kernels/cuda/anchor_attention_args.h"
#include "kernels/cuda/launch_check.h"

namespace dflash::cuda {

namespace {

AnchorAttentionShape make_shape(const Tensor& q, const Tensor& k_context, const AnchorAttentionMask& mask, float scale, int multiprocessors,
                                int tile) {
    DFLASH_CHECK(scale > 0, "anchor attention: scale {}", scale);
    AnchorAttentionShape s{};
    s.context_rows = static_cast<int>(k_context.shape[0]);
    s.tokens = static_cast<int>(q.shape[0]);
    s.block_size = static_cast<int>(mask.block_size);
    s.live_tokens = static_cast<int>(mask.num_live * mask.block_size);
    s.heads = static_cast<int>(q.shape[1]);
    s.kv_heads = static_cast<int>(k_context.shape[1]);
    s.head_dim = static_cast<int>(q.shape[2]);
    s.window = static_cast<int>(mask.window);
    s.causal_block = mask.causal_block;
    s.scale = scale;
    s.multiprocessors = multiprocessors;
    s.tile = tile;
    return s;
}

template <typename T>
T* device_pointer(const Tensor& tensor, DType dtype, const char* name) {
    DFLASH_CHECK(tensor.dtype == dtype, "anchor attention: {} is {}; the CUDA kernels take {}", name, dtype_name(tensor.dtype),
                 dtype_name(dtype));
    DFLASH_CHECK(reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0, "anchor attention: {} is not aligned to 16 bytes", name);
    return static_cast<T*>(tensor.data);
}
Bf16Bits* bf16_pointer(const Tensor& tensor, const char* name) { return device_pointer<Bf16Bits>(tensor, DType::kBF16, name); }
float* f32_pointer(const Tensor& tensor, const char* name) { return device_pointer<float>(tensor, DType::kF32, name); }

template <typename Params>
AnchorAttentionInputs make_inputs(const Params& p) {
    return {bf16_pointer(p.q, "q"),
            bf16_pointer(p.k_context, "k_context"),
            bf16_pointer(p.v_context, "v_context"),
            bf16_pointer(p.k_block, "k_block"),
            bf16_pointer(p.v_block, "v_block"),
            static_cast<const int*>(p.mask.begin_row.data),
            static_cast<const int*>(p.mask.anchor_row.data)};
}

void clear(const Stream& stream, const Tensor& tensor) {
    if (tensor.bytes() > 0) DFLASH_CUDA(cudaMemsetAsync(tensor.data, 0, tensor.bytes(), static_cast<cudaStream_t>(stream.handle)));
}

}  // namespace

int compute_capability() {
    int device = 0, major = 0, minor = 0;
    DFLASH_CUDA(cudaGetDevice(&device));
    DFLASH_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    DFLASH_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    return 10 * major + minor;
}

void launch_anchor_attention_forward(const Stream& stream, const AnchorAttentionForwardParams& p, const AttentionKernel& kernel,
                                     int multiprocessors) {
    if (p.mask.num_live == 0) {
        clear(stream, p.out);
        clear(stream, p.lse);
        return;
    }
    const AnchorAttentionForwardArgs args{make_shape(p.q, p.k_context, p.mask, p.scale, multiprocessors, kernel.tile), make_inputs(p),
                                          bf16_pointer(p.out, "out"), f32_pointer(p.lse, "lse")};
    kernel.backend == AttentionBackend::kHopper ? hopper::forward(args, stream.handle) : portable::forward(args, stream.handle);
}

void launch_anchor_attention_backward(const Stream& stream, const AnchorAttentionBackwardParams& p, const AttentionKernel& kernel,
                                      int multiprocessors) {
    if (p.mask.num_live == 0) {
        for (const Tensor* output : {&p.delta, &p.d_q, &p.d_k_context, &p.d_v_context, &p.d_k_block, &p.d_v_block}) clear(stream, *output);
        return;
    }
    const AnchorAttentionBackwardArgs args{make_shape(p.q, p.k_context, p.mask, p.scale, multiprocessors, kernel.tile),
                                           make_inputs(p),
                                           bf16_pointer(p.d_out, "d_out"),
                                           bf16_pointer(p.out, "out"),
                                           f32_pointer(p.lse, "lse"),
                                           f32_pointer(p.delta, "delta"),
                                           bf16_pointer(p.d_q, "d_q"),
                                           bf16_pointer(p.d_k_context, "d_k_context"),
                                           bf16_pointer(p.d_v_context, "d_v_context"),
                                           bf16_pointer(p.d_k_block, "d_k_block"),
                                           bf16_pointer(p.d_v_block, "d_v_block")};
    kernel.backend == AttentionBackend::kHopper ? hopper::backward(args, stream.handle) : portable::backward(args, stream.handle);
}

// The ops of kernels/anchor_attention.h: the kernel that was chosen for the shape, else the default of the context's device.
namespace {

template <typename Params>
AttentionKernel kernel_for(const Context& context, const Params& p, AttentionPass pass) {
    const std::int64_t heads = p.q.shape[1], kv_heads = p.k_context.shape[1], head_dim = p.q.shape[2];
    if (context.attention() != nullptr) {
        const AttentionKey key{pass,
                               heads,
                               kv_heads,
                               head_dim,
                               p.mask.block_size,
                               p.mask.window,
                               p.mask.causal_block,
                               length_bucket(p.k_context.shape[0]),
                               length_bucket(p.mask.begin_row.elements())};
        if (const AttentionKernel* chosen = context.attention()->find(key)) return *chosen;
    }
    return choose_attention_kernel(compute_capability(), heads, kv_heads, head_dim, p.mask.block_size);
}

}  // namespace

void anchor_attention_forward(const Context& context, const AnchorAttentionForwardParams& p) {
    launch_anchor_attention_forward(context.stream(), p, kernel_for(context, p, AttentionPass::kForward));
}

void anchor_attention_backward(const Context& context, const AnchorAttentionBackwardParams& p) {
    launch_anchor_attention_backward(context.stream(), p, kernel_for(context, p, AttentionPass::kBackward));
}

}  // namespace dflash::cuda
