# SPDX-License-Identifier: MIT
"""Our fused anchor attention beside PyTorch's compiled flex_attention: the same shapes, anchors and device, in one run.

    python3 bench/compare_flex_attention.py PATH_TO/attention_bench

Prints a line a case: milliseconds forward and backward of both, and the ratio (above 1: ours is faster). 20 launches after 5, medians.
The anchors of each case come from attention_bench itself (--anchors), so that both see one mask."""
import json
import subprocess
import sys
import time

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 32, 8, 128, 16


def median_ms(work, runs=20, warm_up=5):
    torch.cuda.synchronize()
    time.sleep(0.4)  # as attention_bench: every kernel is timed cold
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
    context, window = case["context"], case["window"]
    begin = torch.tensor(case["begin"], dtype=torch.int32, device="cuda")
    anchor = torch.tensor(case["anchor"], dtype=torch.int32, device="cuda")
    queries = len(case["anchor"]) * BLOCK
    keys = context + queries

    def mask(b, h, q, k):
        block = q // BLOCK
        slot = q % BLOCK
        low = begin[block]
        own = (k >= context) & ((k - context) // BLOCK == block)
        if window > 0:  # sliding layers have a left edge a slot, and are causal inside the block
            low = torch.maximum(low, anchor[block] + slot - (window - 1))
            own = own & ((k - context) % BLOCK <= slot)
        return ((k < context) & (k >= low) & (k < anchor[block])) | own

    block_mask = create_block_mask(mask, None, None, queries, keys, device="cuda")
    torch.manual_seed(0)
    q = torch.randn(1, HEADS, queries, HEAD_DIM, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    k = torch.randn(1, KV_HEADS, keys, HEAD_DIM, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    v = torch.randn(1, KV_HEADS, keys, HEAD_DIM, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    d_out = torch.randn_like(q)
    attention = torch.compile(flex_attention, dynamic=False)
    forward = median_ms(lambda: attention(q, k, v, block_mask=block_mask, enable_gqa=True))
    out = attention(q, k, v, block_mask=block_mask, enable_gqa=True)
    backward = median_ms(lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True))
    return forward, backward


def main():
    program = sys.argv[1]
    torch._dynamo.config.recompile_limit = 64
    lines = subprocess.run([program, "--json", "--anchors"], check=True, capture_output=True, text=True).stdout.splitlines()
    cases = [json.loads(line) for line in lines]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, matmul bf16 8192^3: {cases[0]['ceiling_tflops']:.0f} TFLOP/s")
    print("case | ours forward, backward ms | flex forward, backward ms | flex / ours forward, backward")
    for case in (c for c in cases if c["back_end"] == "hopper"):
        torch._dynamo.reset()
        forward, backward = flex_ms(case)
        print(
            f"{case['case']} | {case['forward_ms']:.3f} {case['backward_ms']:.3f} | {forward:.3f} {backward:.3f} | "
            f"{forward / case['forward_ms']:.2f} {backward / case['backward_ms']:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
