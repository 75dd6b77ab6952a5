#!/usr/bin/env python3
"""The reference of bench_server: torch.optim.AdamW on one thread.

Arguments: VALUES FORM, the form being `default` (what torch.optim.AdamW does by itself) or `fused`.
Says "ready DESCRIPTION" after one step, then answers each line "N" on standard input with the
processor seconds of N steps. The values are tensors of GPT-2's shapes, as many as it takes, f32.
"""
import sys
import time

import torch

torch.set_num_threads(1)


def parameters(values):
    shapes = [(768, 2304), (768, 768), (768, 3072), (3072, 768)]
    made = []
    while values > 0:
        shape = shapes[len(made) % len(shapes)]
        rows = max(1, min(shape[0], values // shape[1]))
        parameter = torch.nn.Parameter(torch.randn(rows, shape[1]))
        parameter.grad = torch.randn_like(parameter) * 1e-3
        values -= parameter.numel()
        made.append(parameter)
    return made


def main():
    values, form = int(sys.argv[1]), sys.argv[2]
    extra = {"fused": True} if form == "fused" else {}
    made = parameters(values)
    optimizer = torch.optim.AdamW(made, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, **extra)
    optimizer.step()
    print(f"ready torch {torch.__version__}, AdamW, {form}, {len(made)} tensors", flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = time.thread_time()
            optimizer.step()
            seconds.append(time.thread_time() - start)
        print(*(f"{s:.6f}" for s in seconds), flush=True)


if __name__ == "__main__":
    main()
