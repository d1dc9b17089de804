# SPDX-License-Identifier: MIT
"""Our fused anchor attention beside PyTorch's compiled flex_attention: the same shapes, anchors and device, in one run.

    python3 bench/compare_flex_attention.py PATH_TO/dflash

Prints a line a case: milliseconds forward and backward of both, and the ratio (above 1: ours is faster). 20 launches after 5, medians.
The anchors of each case come from `dflash bench attention` itself (--anchors), so that both see one mask. Shapes are read from its lines.
Ours is the kernel that training runs on the device."""
import json
import subprocess
import sys
import time

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

def median_ms(work, runs=20, warm_up=5):
    torch.cuda.synchronize()
    time.sleep(0.4)  # as dflash: every kernel is timed cold
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(runs):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[runs // 2]


def flex_ms(case):
    context, window, block_size = case["context"], case["window"], case["block_size"]
    heads, kv_heads, head_dim = case["heads"], case["kv_heads"], case["head_dim"]
    begin = torch.tensor(case["begin"], dtype=torch.int32, device="cuda")
    anchor = torch.tensor(case["anchor"], dtype=torch.int32, device="cuda")
    queries = len(case["anchor"]) * block_size
    keys = context + queries

    def mask(b, h, q, k):
        block = q // block_size
        slot = q % block_size
        low = begin[block]
        own = (k >= context) & ((k - context) // block_size == block)
        if window > 0:  # sliding layers have a left edge a slot, and are causal inside the block
            low = torch.maximum(low, anchor[block] + slot - (window - 1))
            own = own & ((k - context) % block_size <= slot)
        return ((k < context) & (k >= low) & (k < anchor[block])) | own

    block_mask = create_block_mask(mask, None, None, queries, keys, device="cuda")
    torch.manual_seed(0)
    q = torch.randn(1, heads, queries, head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    k = torch.randn(1, kv_heads, keys, head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    v = torch.randn(1, kv_heads, keys, head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    d_out = torch.randn_like(q)
    attention = torch.compile(flex_attention, dynamic=False)
    forward = median_ms(lambda: attention(q, k, v, block_mask=block_mask, enable_gqa=True))
    out = attention(q, k, v, block_mask=block_mask, enable_gqa=True)
    backward = median_ms(lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True))
    return forward, backward


def main():
    program = sys.argv[1]
    torch._dynamo.config.recompile_limit = 64
    command = [program, "bench", "attention", "--device", "cuda", "--table", "--json", "--anchors"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    cases = [json.loads(line) for line in lines]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, matmul bf16 8192^3: {cases[0]['ceiling_tflops']:.0f} TFLOP/s")
    print("case | ours forward, backward ms | flex forward, backward ms | flex / ours forward, backward")
    for case in cases:
        torch._dynamo.reset()
        forward, backward = flex_ms(case)
        print(
            f"{case['case']} ({case['kernel']}) | {case['forward_ms']:.3f} {case['backward_ms']:.3f} | {forward:.3f} {backward:.3f} | "
            f"{forward / case['forward_ms']:.2f} {backward / case['backward_ms']:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
